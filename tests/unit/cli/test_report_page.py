"""The page about a build: sound HTML that fetches nothing, whatever a build was told of."""

from __future__ import annotations

import os
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cutlass_aot.builder import events
from cutlass_aot.cli.output.report import page as pages
from cutlass_aot.cli.output.report.about import About, about_build
from cutlass_aot.cli.output.report.collect import Collector, Span
from cutlass_aot.cli.output.report.page import render, reported, write_page
from cutlass_aot.errors import ManifestError, ReportError
from tests.support.build_events import Clock, artifact, build, failure, kernel, planned, tell_all

ABOUT = About(
    manifest="m.toml",
    bundle="my-kernels",
    version="1.2.3",
    targets=("sm_100a",),
    hosts=("x86_64",),
    device="b200",
    versions={"cutlass-aot": "0.1.0", "nvidia-cutlass-dsl": "4.8.1"},
)
VOID = {"meta", "br", "link", "img", "input", "hr"}
CLOSED = {"rect", "path", "line"}
"""Elements of SVG that are written closed."""
HOSTILE = "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'"


class Page(HTMLParser):
    """A page as a browser sees it; raises where elements are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in CLOSED
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def check(text: str) -> Page:
    """Read a page, and hold it against what every page promises."""
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {"src", "href", "srcset", "xlink:href", "action", "background"} & names
    assert not [name for name in names if name.startswith("on")]
    assert not re.search(r"https?:|//\w|url\(|@import", text)
    assert "default-src 'none'" in text
    assert "nan" not in [value for _, value in page.attributes]
    return page


@pytest.fixture
def clock():
    return Clock()


def collected(clock, told):
    collector = Collector(now=clock)
    tell_all(collector, told)
    return collector.facts()


def test_a_good_build(clock):
    items = [kernel(number, group=number % 3) for number in range(40)]
    page = check(render(ABOUT, collected(clock, build(clock, items, present=10))))
    for words in (
        "my-kernels 1.2.3 bundle written",
        "40 kernels",
        "30 compiled now",
        "10 present",
        "0 failed",
        "7 spill registers",
        "Seconds of compilation",
        "168, all of them",
        "40.0 KB, all of them",
        "nvidia-cutlass-dsl 4.8.1",
        "ptxas, read from the objects 12.9",
        "from m.toml",
        "None was linked",
    ):
        assert words in page.words, words
    for item in items:
        assert item.name.removeprefix(f"{item.group_name}-") in page.text
    assert page.words.count(items[0].group_name) >= 2


def test_equal_builds_give_equal_pages_whatever_the_order(clock):
    items = [kernel(number, group=number % 3) for number in range(12)]
    told = [planned(items), *(events.Compiled(item, artifact()) for item in items)]
    other = [planned(items[::-1]), *(events.Compiled(item, artifact()) for item in items[::-1])]
    told.append(events.Finished(Path("/a/b"), 12, 12, 0, True))
    other.append(events.Finished(Path("/c/d"), 12, 12, 0, True))
    first = [item for item in render(ABOUT, collected(clock, told)).splitlines() if "<title>" not in item]
    second = [item for item in render(ABOUT, collected(clock, other)).splitlines() if "<title>" not in item]
    assert first == second


def test_hostile_names_reasons_warnings_and_logs_are_text(clock, tmp_path):
    log = tmp_path / "<b>.log"
    log.write_bytes(b"\x1b[31mred\x1b[0m \x00\xff " + HOSTILE.encode())
    bad = kernel(1)
    design = {"family": HOSTILE, "tile_shape": (1, 1)}
    bad = type(bad).make(
        operation=HOSTILE, generator="g", operands=bad.operands, accumulator="f32", design=design,
        target="sm_100a",
    )  # fmt: skip
    facts = collected(
        clock,
        [
            planned([bad, kernel(2)], warnings=(HOSTILE,)),
            events.Started(bad),
            events.Failed(failure(bad, log, HOSTILE)),
            events.Compiled(kernel(2), artifact()),
            events.Notice(HOSTILE),
            events.Finished(Path("b"), 2, 1, 1, False),
        ],
    )
    about = About(
        HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), (HOSTILE,), HOSTILE, {**ABOUT.versions, "x": HOSTILE}
    )
    page = check(render(about, facts, ended_by=HOSTILE))
    assert page.text.count(HOSTILE) >= 10
    assert "red \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} " in page.text
    assert "\x1b" not in page.text


def test_a_failing_build_shows_reasons_and_the_ends_of_logs(clock, tmp_path):
    long, missing = tmp_path / "long.log", tmp_path / "missing.log"
    long.write_text("begin\n" + "x\n" * 50_000 + "the end of it")
    items = [kernel(number) for number in range(3)]
    told = [
        planned(items),
        events.Failed(failure(items[0], long, "the compiler crashed (signal 11)")),
        events.Failed(failure(items[1], missing)),
        events.Compiled(items[2], artifact()),
        events.Finished(Path("b"), 3, 1, 2, False),
    ]
    text = render(ABOUT, collected(clock, told))
    page = check(text)
    assert "no bundle: 2 of 3 kernels failed" in page.words
    assert "the compiler crashed (signal 11)" in page.words
    assert "the end of it" in page.words
    assert "begin" not in page.words.split()
    assert "the log cannot be read: No such file" in page.words
    assert "Libraries" not in page.words
    assert len(text) < 60_000


def test_many_logs_are_cut(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "MAX_LOGS_BYTES", 20_000)
    log = tmp_path / "x.log"
    log.write_text("<" * 20_000)
    items = [kernel(number) for number in range(50)]
    told = [planned(items), *(events.Failed(failure(item, log)) for item in items)]
    page = check(render(ABOUT, collected(clock, told)))
    assert page.text.count("<") == 20_000
    assert page.words.count("The end of its log") == 3
    assert page.words.count("Its log is x.log in the store.") == 47


def test_an_empty_build(clock):
    check(render(ABOUT, collected(clock, [planned([]), events.Finished(Path("b"), 0, 0, 0, True)])))


def test_nothing_compiled_and_everything_failed(clock, tmp_path):
    item = kernel(1)
    told = [
        planned([item]),
        events.Failed(failure(item, tmp_path / "no")),
        events.Finished(Path("b"), 1, 0, 1, False),
    ]
    page = check(render(ABOUT, collected(clock, told)))
    assert "Slowest" not in page.words


def test_a_build_with_nothing_to_do_shows_what_the_store_has(clock):
    items = [kernel(number) for number in range(5)]
    told = [planned(items, present=5), events.Finished(Path("b"), 5, 0, 0, False)]
    page = check(render(ABOUT, collected(clock, told)))
    assert "my-kernels 1.2.3 up to date" in page.words
    assert "5 present" in page.words
    assert "Slowest kernels" in page.words
    told = [events.UpToDate(5), events.Finished(Path("b"), 5, 0, 0, False)]
    assert "looked at no kernel" in check(render(ABOUT, collected(clock, told))).words


def test_thousands_of_kernels_stay_small(clock):
    items = [kernel(number, group=number % 6) for number in range(12_000)]
    text = render(ABOUT, collected(clock, build(clock, items, workers=64)))
    page = check(text)
    assert len(text) < 5_000_000
    assert "2000 kernels more; cutlass-aot ls lists all of a bundle" in page.words
    assert page.tags["tr"] < pages.MAX_ROWS + 1_200


def test_a_kernel_that_nobody_started_ends_when_it_was_told(clock):
    collector = Collector(now=clock)
    items = [kernel(1), kernel(2), kernel(3)]
    clock.seconds = 5
    collector(planned(items))
    collector(events.Started(items[1]))
    clock.seconds = 8
    collector(events.Compiled(items[0], artifact(2)))
    collector(events.Compiled(items[1], artifact(2)))
    collector(events.Compiled(items[2], artifact(99)))
    assert collector.facts().spans == (
        Span(0, 3, items[2].name, False),
        Span(1, 3, items[0].name, False),
        Span(1, 3, items[1].name, False),
    )


def test_the_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "page.html"
    write_page(path, "first \udcff")
    assert path.read_bytes() == b"first \\udcff"
    assert path.stat().st_mode & 0o777 == 0o644

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReportError, match=r"page\.html: the page cannot be written: No space left on device"):
        write_page(path, "second")
    assert path.read_bytes() == b"first \\udcff"
    assert [item.name for item in path.parent.iterdir()] == ["page.html"]


def test_a_place_that_cannot_be_is_said_before_the_build(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "page.html"):
        with pytest.raises(ReportError), reported(path, ABOUT):
            pytest.fail("the build began")


def report_and_raise(path, told, error):
    with reported(path, ABOUT) as collect:
        tell_all(collect, told)
        raise error


def test_an_error_after_the_plan_leaves_a_page_that_says_so(tmp_path):
    path = tmp_path / "page.html"
    told = [planned([kernel(1), kernel(2)]), events.Compiled(kernel(1), artifact())]
    with pytest.raises(OSError, match="disk"):
        report_and_raise(path, told, OSError("the disk <is> full"))
    page = check(path.read_text())
    assert "ended by an error" in page.words
    assert "the disk <is> full" in page.words
    assert "1 not reached" in page.words
    with pytest.raises(KeyboardInterrupt):
        report_and_raise(path, told, KeyboardInterrupt())
    assert "my-kernels 1.2.3 interrupted" in check(path.read_text()).words


def test_the_error_of_the_build_is_told_not_that_of_its_page(tmp_path, monkeypatch):
    def unwritable(*_):
        raise ReportError("no room")

    monkeypatch.setattr(pages, "write_page", unwritable)
    with pytest.raises(OSError, match="disk"):
        report_and_raise(tmp_path / "page.html", [planned([kernel(1)])], OSError("the disk is full"))


def test_an_error_before_the_plan_leaves_what_was_there(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("earlier")
    with pytest.raises(ManifestError):
        report_and_raise(path, [events.Enumerating(3)], ManifestError("no"))
    assert path.read_text() == "earlier"


def test_what_is_said_of_a_manifest(tmp_path):
    manifest = tmp_path / "m.toml"
    manifest.write_text(
        '[bundle]\nname = "x"\ntargets = ["sm_100a", "sm_90a"]\n'
        'device = { sm_90a = "h200", sm_100a = "b200" }\n'
        '[[kernels]]\ngenerator = "simt_f64_gemm"\nab = "f64"\n'
    )
    about = about_build(manifest)
    assert (about.manifest, about.bundle, about.version) == ("m.toml", "x", "0.1.0")
    assert about.targets == ("sm_100a", "sm_90a")
    assert {"cutlass-aot", "Python", "msgpack"} <= set(about.versions)


def test_a_kernel_that_failed_in_an_earlier_build_kept_no_worker_busy(clock, tmp_path):
    facts = collected(clock, [planned([kernel(1)]), events.Failed(failure(kernel(1), tmp_path / "x.log"))])
    assert facts.spans == ()
    assert "Workers" not in check(render(ABOUT, facts)).words
