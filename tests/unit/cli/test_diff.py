"""`cutlass-aot diff`: what two bundles, reports or plans differ in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.cli import main
from cutlass_aot.diff.compare import compare
from cutlass_aot.diff.listing import NUMBERS, ListedKernel, Listing, read_listing
from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, RankedProblems, Ranking
from tests.support.bundles import designs, write_bundle

KERNELS = designs()
Run = Callable[..., tuple[object, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["diff", *map(str, arguments)])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return call


def ranked(microseconds: float) -> Ranking:
    problem = RankedProblem(Extents(1, 8, 8, 8), (KERNELS[0].digest,), (microseconds * 1e-6,))
    return Ranking(KERNELS[0].group, "NVIDIA H200", True, "a test", RankedProblems([problem]))


def plan(path: Path, **changes: Any) -> Path:
    """The output of ``plan --json`` with one kernel, which the store has."""
    kernel = KERNELS[0]
    item = {
        "name": kernel.name, "group": kernel.group_name, "target": kernel.target, "key": "k", "build": False,
        "why": "present", "object_sha256": "0" * 64, "object_bytes": 1000, "seconds": 2.0, "registers": 100,
        "spill_bytes": 0, "static_bytes": 0, "code_bytes": 900, **changes,
    }  # fmt: skip
    path.write_text(json.dumps({"kernels": [item]}))
    return path


def test_bundles(run: Run, tmp_path: Path) -> None:
    first = write_bundle(tmp_path / "a", KERNELS[:2], rankings=[ranked(10)])
    second = write_bundle(tmp_path / "b", [KERNELS[0], KERNELS[2]], rankings=[ranked(5)])
    status, out, errors = run(first, second)
    assert (status, errors) == (0, "")
    assert "added: 1 kernel\n" in out
    assert "removed: 1 kernel\n" in out
    assert "0.500" in out
    assert out.endswith("1 added, 1 removed, 0 changed, 1 equal\n")
    assert max(map(len, out.splitlines())) <= 100
    found = json.loads(run(first, second, "--json")[1])
    assert [item["name"] for item in found["added"]] == [KERNELS[2].name]
    assert [item["name"] for item in found["removed"]] == [KERNELS[1].name]
    assert found["a"]["bytes"] == sum(file.stat().st_size for file in first.rglob("*") if file.is_file())
    (speed,) = found["speeds"]
    assert (speed["kernel"], speed["ratio"]) == (KERNELS[0].name, pytest.approx(0.5))


def test_plans_and_a_bundle(run: Run, tmp_path: Path) -> None:
    first, second = plan(tmp_path / "a"), plan(tmp_path / "b", registers=120, seconds=3.0, spill_bytes=8)
    status, out, _ = run(first, second)
    assert status == 0
    assert ["registers", "100", "120", "+20.0", "%"] in [line.split() for line in out.splitlines()]
    assert ["spills", "0", "B", "8", "B", "new"] in [line.split() for line in out.splitlines()]
    assert "compiling what both have took 2.0 s in A and 3.0 s in B" in out
    found = json.loads(run(first, write_bundle(tmp_path / "c", KERNELS), "--json")[1])
    assert (len(found["added"]), len(found["changed"]), found["removed"]) == (2, 1, [])
    assert found["changed"][0]["registers"] == [100, 168]


def test_keys_count_where_there_is_no_object(tmp_path: Path) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("object_sha256", "object_bytes", "seconds", *NUMBERS))
    one = read_listing(str(plan(tmp_path / "a", **nothing)))
    assert compare(one, read_listing(str(plan(tmp_path / "b", key="other", **nothing)))).changed[0].code
    # A kernel that was built meanwhile is the same kernel.
    assert compare(one, read_listing(str(plan(tmp_path / "c")))).equal == 1


@pytest.mark.parametrize("text", ["", "{}", "<html></html>", '{"kernels": [1]}', "[" * 100_000, "\xff"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(CorruptFile, match="neither a report"):
        read_listing(str(tmp_path / "x"))


def test_a_listing_ends_no_element_of_a_page() -> None:
    kernel = ListedKernel("</script><b>", "d", "sm_90a")
    assert "<" not in Listing("report", "<i>", None, (kernel,)).to_json()
