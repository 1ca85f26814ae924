"""What a build shows: bars that fit the terminal and go on counting, lines elsewhere, notes beside JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from cutlass_aot.builder import events
from cutlass_aot.builder.events import Event
from cutlass_aot.cli.output.event_lines import NAMES, EventLines
from cutlass_aot.cli.output.progress import BarReport, Notes, PlainReport, Progress, make_report, short_name
from cutlass_aot.schema.encoding import digest
from tests.support.build_events import Clock, artifact, build, failure, kernel, planned, samples, tell_all

LOG = Path("store/logs/x.log")


def picture(report: BarReport, width: int) -> list[str]:
    """The bars as they stand, drawn on a terminal of so many columns."""
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as captured:
        console.print(report._picture())
    return captured.get().splitlines()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def bars(clock):
    """Makes a report on a terminal of a width."""

    def make(width=80):
        console = Console(width=width, height=24, file=io.StringIO(), force_terminal=True)
        made.append(BarReport(console, now=clock))
        return made[-1]

    made: list[BarReport] = []
    yield make
    for report in made:
        report.close()


def half_done(report, clock):
    items = [kernel(number) for number in range(20)]
    report(planned(items, present=4))
    for item in items[4:9]:
        report(events.Started(item))
        clock.seconds += 2
        report(events.Compiled(item, artifact()))
    report(events.Started(items[9]))
    report(events.Failed(failure(items[9], LOG)))
    report(events.Started(items[10]))
    clock.seconds += 3
    report(events.Started(items[11]))
    return items


def test_the_bars_say_what_a_person_wants_to_know(bars, clock):
    report = bars()
    items = half_done(report, clock)
    compiling, state, slowest = picture(report, 80)
    assert compiling.startswith("compiling ━")
    # 6 kernels in 13 seconds; 10 to go.
    assert "6/16  28/min  22 s left" in compiling
    assert state == "4 cached, 1 failed, 2 running"
    assert (
        slowest
        == f"slowest now, 3 s: sm_100a bf16 tnt 128x256x64 cluster2x1x1 n10 Dense {items[10].name[-8:]}"
    )


def test_seconds_go_on_while_nothing_happens(bars, clock):
    report = bars()
    half_done(report, clock)
    clock.seconds += 60
    assert "slowest now, 1 min 3 s" in picture(report, 80)[2]
    assert "5/min" in picture(report, 80)[0]


@pytest.mark.parametrize("width", [20, 40, 50, 80, 200])
def test_nothing_wraps(bars, clock, width):
    report = bars(width)
    half_done(report, clock)
    report(events.Linking(3))
    report(events.Linked("sm_100a-0", 128, 1000, 0.5, "x86_64"))
    lines = picture(report, width)
    assert len(lines) == 4
    assert max(map(len, lines)) <= width
    assert "1/3" in lines[3]


def test_a_kernel_that_ended_is_not_running(bars, clock):
    report = bars()
    items = half_done(report, clock)
    report(events.Compiled(items[10], artifact()))
    report(events.Shared(items[11], artifact()))
    assert picture(report, 80)[1] == "5 cached, 1 failed"
    assert len(picture(report, 80)) == 2


def test_before_there_is_a_plan_it_says_what_it_waits_for(bars, clock):
    report = bars()
    report(events.Enumerating(12))
    clock.seconds += 8
    assert picture(report, 80) == ["enumerating 12 problems, 8 s"]
    report(planned([]))
    assert picture(report, 80) == []


def test_it_says_how_far_programs_are(bars, clock, capsys):
    report = bars()
    first, second = ("python a.py", "sm_90a"), ("python b.py", "sm_90a")
    report(events.Running(*first))
    clock.seconds += 5
    assert picture(report, 80) == ["recording python a.py for sm_90a, 5 s"]
    report(events.Recording(*first, 3, 1, 0))
    assert picture(report, 80) == ["recording python a.py for sm_90a: 3 requests, 1 compiled, 5 s"]
    report(events.Running(*second))
    report(events.Recording(*second, 1, 0, 1))
    assert picture(report, 80) == ["recording 2 programs: 4 requests, 1 compiled, 1 failed, 5 s"]
    report(events.Ran(*first, 3, 3, 0))
    assert picture(report, 80) == ["recording python b.py for sm_90a: 1 request, 0 compiled, 1 failed, 5 s"]
    lines = PlainReport(clock)
    lines(events.Running(*first))
    for requests in range(1, 26):
        clock.seconds += 1
        lines(events.Recording(*first, requests, requests - 1, 0))
    lines(events.Ran(*first, 25, 25, 0))
    assert capsys.readouterr().err.splitlines() == [
        "recording python a.py for sm_90a",
        "recording python a.py for sm_90a: 10 requests, 9 compiled",
        "recording python a.py for sm_90a: 20 requests, 19 compiled",
        "recorded python a.py for sm_90a: 25 requests, 25 compiled",
    ]


def test_it_says_that_it_waits_for_the_import_of_the_dsl(bars, clock, capsys):
    report = bars()
    report(events.Enumerating(12))
    report(events.Importing())
    clock.seconds += 6
    assert picture(report, 80) == ["importing the DSL, 6 s"]
    report(events.Imported(6.0))
    assert picture(report, 80) == ["enumerating 12 problems, 6 s"]
    # Where the plan is known, it is imported to compile.
    report(planned([kernel(1)]))
    report(events.Importing())
    assert picture(report, 80) == ["importing the DSL, 0 s"]
    report(events.Imported(1.0))
    assert picture(report, 80)[0].startswith("compiling")
    tell_all(PlainReport(), [events.Enumerating(1), events.Importing(), events.Imported(6.0)])
    assert capsys.readouterr().err == "enumerating 1 problem\nimporting the DSL\n"


def test_failures_and_the_end_stay_above_the_bars(bars, clock):
    report = bars()
    tell_all(report, build(clock, [kernel(number) for number in range(8)], present=2))
    report(events.Failed(failure(kernel(99), LOG)))
    told = report._console.file.getvalue()
    assert "plan: 6 kernels to build, 2 present" in told
    assert "6 kernels compiled in 1 s, 2 present; slowest 0.8 s: gemm-bf16" in told
    assert f"failed: {kernel(99).name}: ValueError: no such instruction (log: {LOG})" in told


def test_the_rate_is_that_of_late():
    clock = Clock()
    progress = Progress(clock)
    items = [kernel(number) for number in range(300)]
    progress.take(planned(items))
    assert progress.rate is None
    assert progress.seconds_left is None
    for number, item in enumerate(items[:200]):
        clock.seconds += 10 if number < 100 else 1
        progress.take(events.Compiled(item, artifact()))
    assert progress.rate == pytest.approx(1.0)
    assert progress.seconds_left == pytest.approx(100)


def test_a_short_name_keeps_its_end():
    full = kernel(7)
    assert short_name(full, 200).split()[0] == "sm_100a"
    for width in range(8, 100):
        text = short_name(full, width)
        assert len(text) <= width
        assert text.endswith(full.name[-8:])


def test_plain_lines_are_few_and_end_with_what_it_came_to(capsys):
    clock = Clock()
    report = PlainReport()
    report._progress.now = clock
    tell_all(report, build(clock, [kernel(number) for number in range(104)], present=4, workers=1))
    out, errors = capsys.readouterr()
    lines = errors.splitlines()
    assert out == ""
    assert lines[0] == "plan: 100 kernels to build, 4 present"
    assert lines[1] == "compiling: 10/100 in 5 s, about 45 s left"
    assert lines[-1].startswith("finished: 100 kernels compiled in 50 s, 4 present; slowest 0.5 s: gemm-bf16")
    assert len(lines) == 11


def test_notes_stay_when_the_lines_are_json(capsys):
    notes = make_report(quiet=True)
    assert type(notes) is Notes
    tell_all(notes, samples(LOG))
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.splitlines() == [
        "note: no INT8 there",
        f"failed: {kernel(3).name}: ValueError: no such instruction (log: {LOG})",
        "note: the remote store cannot be reached",
    ]


def test_every_event_is_one_line_of_sorted_plain_json(capsys):
    told = samples(LOG)
    assert {type(event) for event in told} == set(get_args(Event)) == set(NAMES)
    tell_all(EventLines(), told)
    out, errors = capsys.readouterr()
    assert errors == ""
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["event"] for record in records] == [NAMES[type(event)] for event in told]
    for line, record in zip(out.splitlines(), records, strict=True):
        assert line == json.dumps(record, sort_keys=True)
        assert record["at"] >= 0
    by_name = {record["event"]: record for record in records}
    first = kernel(1)
    assert by_name["started"]["key"] == by_name["compiled"]["key"] == digest(first.digest.encode())
    assert by_name["compiled"]["kernel"] == first.name
    assert by_name["compiled"]["seconds"] == 0.612
    assert by_name["planned"] | {"at": 0} == {
        "event": "planned", "at": 0, "kernels": 4, "missing": 3, "present": 1, "failed_before": 0,
            "warnings": ["no INT8 there"],
    }  # fmt: skip
    assert records[-1]["bundle"] == "out/b"


def test_what_others_have_named_is_drawn_with_its_control_characters_escaped(bars):
    report = bars(200)
    report(events.Running("python \x1b]0;owned\x07", "sm_90a"))
    (line,) = picture(report, 200)
    assert line.startswith("recording python \\x1b]0;owned\\x07 for sm_90a")
