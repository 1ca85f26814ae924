"""The page about a build: sound HTML that fetches nothing, whatever a build was told of."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import zipfile
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.builder import events
from cutlass_aot.cli.output.report import page as pages
from cutlass_aot.cli.output.report.about import About, about_build
from cutlass_aot.cli.output.report.collect import Collector, Span
from cutlass_aot.cli.output.report.page import render, reported, write_page
from cutlass_aot.cli.output.report.sizes import FinalSizes, final_sizes
from cutlass_aot.diff.listing import read_listing
from cutlass_aot.errors import ManifestError, ReportError
from tests.support.build_events import Clock, artifact, build, failure, kernel, planned, tell_all
from tests.support.bundles import designs, write_bundle
from tests.support.paths import REPOSITORY
from tests.support.replace import replace

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
        self.source = text
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.scripts: list[str] = []
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
        if "script" in self.open:
            self.scripts.append(data)
        elif "style" not in self.open:
            self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def rows_of(text: str, title: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    _, _, below = text.partition(f"<h2>{title}</h2>")
    table, _, _ = below.partition("</table>")
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table.split("<tr>")[1:]]
    return [[" ".join(re.sub("<[^>]*>", "", cell).split()) for cell in row] for row in rows]


def check(text: str) -> Page:
    """Read a page, and hold it against what every page promises."""
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {"src", "href", "srcset", "xlink:href", "action", "background"} & names
    assert not [name for name in names if name.startswith("on")]
    assert not re.search(r"https?:|//\w|url\(|@import", text)
    assert "default-src 'none'" in text
    # The one script that the browser may run is ours, whatever else found a way into the page.
    assert len(page.scripts) in (0, 2)
    if page.scripts:
        listing, script = page.scripts
        assert {"title", "size", "columns", "kernels"} == set(json.loads(listing))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in text
        assert not re.search(r"innerHTML|eval|document\.write|Function", script)
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
    assert listed(page) == sorted(item.name for item in items)
    assert page.words.count(items[0].group_name) >= 2


def listed(page: Page) -> list[str]:
    """Names of the kernels in the page's list."""
    found = json.loads(page.scripts[0])
    at = found["columns"].index
    return sorted(f"{row[at('group')]}-{row[at('design')]}" for row in found["kernels"])


def test_what_a_run_was_and_how_large_its_bundle_is(clock):
    items = [kernel(number, target=f"sm_{90 + 10 * (number % 2)}a") for number in range(4)]
    tables = {item.digest: f"kernels[{number % 3}]" for number, item in enumerate(items)}
    told = [
        replace(planned(items), tables=tables),
        *(events.Compiled(item, artifact(registers=100 + 8 * n)) for n, item in enumerate(items)),
        events.Finished(Path("b"), 4, 4, 0, True),
    ]
    about = replace(ABOUT, date="2026-11-24 12:00:00 UTC", commit="abc123", machine="builder, x86_64, 8 CPUs")
    sizes = FinalSizes(80_000, {item.digest: 20_000 for item in items}, ("small.whl", 70_000))
    dynamic = {item.digest: 1000 * n for n, item in enumerate(items)}
    page = check(render(about, collected(clock, told), sizes=sizes, dynamic=dynamic))
    for words in (
        "2026-11-24 12:00:00 UTC · on builder, x86_64, 8 CPUs · commit abc123",
        "bundle 80.0 KB wheel 70.0 KB, small.whl",
        "sm_90a 2 100 to 116 0 1.0 KB 0 B to 2.0 KB 80.0 KB 100.0 KB 40.0 KB",
        "sm_100a 2 108 to 124 0 1.0 KB 1.0 KB to 3.0 KB 80.0 KB 100.0 KB 40.0 KB",
        "kernels[0] 2 100 to 124 0 1.0 KB 0 B to 3.0 KB 80.0 KB 100.0 KB 40.0 KB",
        "kernels[1] 1 108 0 1.0 KB 1.0 KB 40.0 KB 50.0 KB 20.0 KB",
    ):
        assert words.replace(" ", "") in page.words.replace(" ", ""), words


def test_the_sizes_are_those_of_the_bundle_and_of_its_own_wheel(tmp_path):
    members = designs()
    bundle = write_bundle(tmp_path / "bundles" / "small", members)
    found = final_sizes(bundle)
    assert found is not None
    assert found.bundle == sum(file.stat().st_size for file in bundle.rglob("*") if file.is_file())
    assert sum(found.kernels.values()) == pytest.approx(found.bundle)
    assert found.wheel is None
    (tmp_path / "wheels").mkdir()
    for name, root in (("a", write_bundle(tmp_path / "other", members[:1])), ("b", bundle)):
        with zipfile.ZipFile(tmp_path / "wheels" / f"{name}.whl", "w") as archive:
            archive.write(root / "MANIFEST.json", "package/bundle/MANIFEST.json")
    found = final_sizes(bundle)
    assert found is not None
    assert found.wheel == ("b.whl", (tmp_path / "wheels" / "b.whl").stat().st_size)
    assert final_sizes(tmp_path) is None


def test_a_page_can_be_compared(clock, tmp_path):
    items = [kernel(number, group=number % 3) for number in range(6)]
    page = tmp_path / "page.html"
    page.write_text(render(ABOUT, collected(clock, build(clock, items))))
    listing = read_listing(str(page))
    assert (listing.what, listing.title) == ("report", "my-kernels 1.2.3")
    assert sorted(item.name for item in listing.kernels) == sorted(item.name for item in items)
    assert {item.registers for item in listing.kernels} == {168}


CHROMIUM = shutil.which("chromium")
SEEN = """
const made = document.createElement("pre");
made.id = "seen";
made.textContent = JSON.stringify(seen);
document.body.append(made);
"""
ACT = """
const press = (title) => [...document.querySelectorAll("#head button")]
  .find((button) => button.textContent === title).click();
const search = (words) => {
  const input = document.getElementById("search");
  input.value = words;
  input.dispatchEvent(new Event("input"));
};
const names = () => [...document.querySelectorAll("#kernels code")].map((item) => item.textContent);
const seen = [names()];
press("registers");
seen.push(names());
press("registers");
seen.push(names());
search("SM_90A present");
seen.push(names(), document.getElementById("count").textContent);
"""


def seen_in_browser(folder: Path, page: str, script: str, width: int = 1000) -> Any:
    """What a script at the end of a page puts into `seen`, in a window of this width."""
    page = re.sub(r"<meta http-equiv[^>]*>", "", page)
    (folder / "page.html").write_text(page.replace("</body>", f"<script>{script}{SEEN}</script></body>"))
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--window-size={width},1000", f"--user-data-dir={folder / 'browser'}", "--dump-dom",
            f"file://{folder / 'page.html'}",
        ],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return json.loads(html.unescape(done.stdout.split('<pre id="seen">')[1].split("</pre>")[0]))


MEASURE = """
const wide = (element) => element.scrollWidth > element.clientWidth;
const seen = {
  page: wide(document.documentElement),
  tables: [...document.querySelectorAll(".scroll")].filter((item) => !item.closest("#list"))
    .filter(wide).map((item) => [item.textContent.trim(), item.scrollWidth, item.clientWidth]),
  broken: [...document.querySelectorAll("td.s code")].map((item) => item.getClientRects().length > 1),
  labels: [...document.querySelectorAll("svg.chart")].map((chart) =>
    [...chart.querySelectorAll("text.axis")].map((label) => {
      const box = label.getBoundingClientRect();
      return [box.left, box.right];
    })),
};
"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
@pytest.mark.parametrize("width", [600, 1000, 1400])
def test_tables_and_labels_have_room_in_a_browser(clock, tmp_path, width):
    items = [kernel(n, group=n % 6, target=f"sm_{90 + 10 * (n % 2)}a") for n in range(40)]
    made = [artifact(0.1 + 0.013 * n, registers=40 + 5 * n, spills=8 * (n % 2)) for n in range(40)]
    facts = [replace(item.facts, shared_memory_bytes=256 * n) for n, item in enumerate(made)]
    told = [
        planned(items),
        *(
            events.Compiled(item, replace(one, facts=fact))
            for item, one, fact in zip(items[1:], made, facts, strict=False)
        ),
        events.Failed(failure(items[0], tmp_path / "x.log", "an error\n" + "long " * 50)),
        events.Finished(Path("b"), 40, 39, 1, False),
    ]
    sizes = FinalSizes(100_000, {item.digest: 2500.5 for item in items}, None)
    dynamic = {item.digest: 229_600 - 1000 * n for n, item in enumerate(items)}
    page = render(ABOUT, collected(clock, told), dynamic=dynamic, sizes=sizes)
    seen = seen_in_browser(tmp_path, page, MEASURE, width)
    assert seen["page"] is False

    assert seen["tables"] == []
    assert not any(seen["broken"])
    assert len(seen["labels"]) == 3
    for labels in seen["labels"]:
        assert len(labels) >= 2
        assert all(right < left for (_, right), (left, _) in itertools.pairwise(labels))


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_the_list_is_sorted_and_searched_in_a_browser(clock, tmp_path):
    items = [kernel(n, target=f"sm_{90 + 10 * (n % 2)}a") for n in range(4)]
    names = [item.name.removeprefix(f"{item.group_name}-") for item in items]
    told = [
        planned(items, present=1),
        *(events.Compiled(item, artifact(registers=100 - 8 * n)) for n, item in enumerate(items) if n),
        events.Finished(Path("b"), 4, 4, 0, True),
    ]
    seen = seen_in_browser(tmp_path, render(ABOUT, collected(clock, told)), ACT)
    by_name, most, least, found, count = seen
    # Of 168 (the store had it), 92, 84 and 76 registers.
    assert by_name == [names[0], names[2], names[1], names[3]]
    assert most == names
    assert least == names[::-1]
    assert (found, count) == ([names[0]], "1 of 4 kernels")


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
        events.Failed(failure(items[0], long, "the compiler crashed (signal 11)\nline 7: x = y")),
        events.Failed(failure(items[1], missing)),
        events.Compiled(items[2], artifact()),
        events.Finished(Path("b"), 3, 1, 2, False),
    ]
    text = render(ABOUT, collected(clock, told))
    page = check(text)
    assert "no bundle: 2 of 3 kernels failed" in page.words
    assert "the compiler crashed (signal 11)" in page.words
    assert "line 7: x = y" in page.words
    assert "the end of it" in page.words
    assert "begin" not in page.words.split()
    assert "the log cannot be read: No such file" in page.words
    assert "Libraries" not in page.words
    assert len(text) < 60_000


def test_equal_failures_stand_once_with_their_number(clock, tmp_path):
    items = [kernel(number) for number in range(7)]
    (tmp_path / "x.log").write_text("what the compiler said")
    told = [planned(items), *(events.Failed(failure(item, tmp_path / "x.log")) for item in items[:6])]
    # A reason that names the kernel is the same for another kernel.
    told += [
        events.Failed(failure(item, tmp_path / "x.log", f"{item.symbol}: no GPU code")) for item in items[:2]
    ]
    told += [events.Failed(failure(items[6], tmp_path / "x.log", "another reason"))]
    page = check(render(ABOUT, collected(clock, told)))
    assert page.words.count("ValueError: no such instruction") == 1
    assert "6 kernels:" in page.words
    assert page.words.count(": no GPU code") == 1
    assert page.words.count("what the compiler said") == 3
    assert all(item.name in page.text for item in items)


def test_many_logs_are_cut(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "MAX_LOGS_BYTES", 20_000)
    log = tmp_path / "x.log"
    log.write_text("<" * 20_000)
    items = [kernel(number) for number in range(50)]
    told = [planned(items), *(events.Failed(failure(item, log, f"{item.digest}")) for item in items)]
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
    _, row = rows_of(page.source, "By target")
    assert row == ["sm_100a", "1", "1", "-", "0", "-", "-", "0 B", "0 B"]


def test_the_device_profile_is_named_where_there_is_one(clock):
    facts = collected(clock, [planned([kernel(1)])])
    assert "for hosts x86_64 · device profile b200 · from m.toml" in check(render(ABOUT, facts)).words
    page = check(render(replace(ABOUT, device=""), facts))
    assert "for hosts x86_64 · from m.toml" in page.words


def test_failures_by_target_and_of_an_earlier_build_are_counted(clock, tmp_path):
    items = [kernel(n, target=f"sm_{90 + 10 * (n % 2)}a") for n in range(4)]
    remembered = [replace(failure(item, tmp_path / "x"), before=True) for item in items[:3]]
    told = [
        replace(planned(items), failed_before=3),
        *map(events.Failed, remembered),
        events.Compiled(items[3], artifact()),
        events.Finished(Path("b"), 4, 1, 3, False),
    ]
    page = check(render(ABOUT, collected(clock, told)))
    assert "3 failed, 3 in an earlier build" in page.words
    assert "3 kernels, not compiled again since an earlier build:" in page.words
    rows = rows_of(page.source, "By target")
    assert rows[0][:4] == ["target", "kernels", "failed", "registers"]
    assert [row[:4] for row in rows[1:]] == [["sm_90a", "2", "2", "-"], ["sm_100a", "2", "1", "168"]]


def test_a_whole_number_stands_below_its_bar(clock):
    items = [kernel(n) for n in range(3)]
    told = [planned(items)]
    told += [events.Compiled(item, artifact(registers=11 + n % 2)) for n, item in enumerate(items)]
    text = render(ABOUT, collected(clock, told))
    (chart,) = re.findall(r'aria-label="Registers a thread">(.*?)</svg>', text)
    bars = [
        (float(x), float(w))
        for x, w in re.findall(r'<rect class="plain" x="([0-9.]+)" .*? ?width="([0-9.]+)"', chart)
    ]
    labels = re.findall(r'<text class="axis" x="([0-9.]+)"[^>]*>(\d+)<', chart)
    assert [name for _, name in labels] == ["11", "12"]
    assert [float(x) for x, _ in labels] == pytest.approx([x + w / 2 for x, w in bars])
    assert "<title>11: 2</title>" in chart


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
    assert len(listed(page)) == 12_000
    assert page.tags["tr"] < 1_200


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
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", about.date)
    assert about.commit == ""
    assert platform.machine() in about.machine
    assert re.match(r"[0-9a-f]{40}\b", about_build(REPOSITORY / "manifests" / "smoke.toml").commit)


def test_a_kernel_that_failed_in_an_earlier_build_kept_no_worker_busy(clock, tmp_path):
    facts = collected(clock, [planned([kernel(1)]), events.Failed(failure(kernel(1), tmp_path / "x.log"))])
    assert facts.spans == ()
    assert "Workers" not in check(render(ABOUT, facts)).words
