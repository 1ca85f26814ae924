"""The pure parts of tools/check/catalogue.py: the draw, the tables, what a failure is called, memory."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from cutlass_aot.builder.records import Failure
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.schema.kernels.artifact import Artifact, Facts
from tests.support.kernels import gemm
from tools.check import catalogue as tool

FACTS = Facts("sm_100a", "12.9", 40, 0, 0, 1000)


def kernels(count, family="PersistentDenseGemm", target="sm_100a"):
    return [
        gemm(design={"family": family, "tile_shape": (index + 1, 8)}, target=target) for index in range(count)
    ]


def drawn(monkeypatch, count, seed=0):
    """A draw from three combinations, two of them on sm_100a."""
    first, second = Problem("gemm", ("f16",) * 3, "tnt", "f32"), Problem("gemm", ("f16",) * 3, "ttt", "f32")
    answers = {
        (first, "sm_100a"): kernels(50),
        (second, "sm_100a"): kernels(7, "TgvGemm"),
        (first, "sm_103a"): kernels(5, "TgvGemm", "sm_103a"),
    }
    monkeypatch.setattr(
        tool.compiling,
        "enumerate_kernels",
        lambda _pool, requested, _profiles: [
            (item, answers.get((item.problem, item.target), [])) for item in requested
        ],
    )
    sources = SimpleNamespace(references={tool.GENERATOR: None})
    return tool.draw(None, sources, "4.8.1", count, seed)


def test_every_combination_is_asked_once():
    problems = tool.all_problems()
    assert len(set(problems)) == len(problems) == len(tool.ELEMENT_TYPES) ** 4 * 2**3 == 9**4 * 8


def test_the_draw_is_seeded_grows_with_its_count_and_leaves_out_what_is_known_to_be_bad(monkeypatch):
    few, more = drawn(monkeypatch, 10), drawn(monkeypatch, 20)
    names = {kernel.name for kernel in few.kernels}
    assert len(names) == 10
    assert names < {kernel.name for kernel in more.kernels}
    assert names == {kernel.name for kernel in drawn(monkeypatch, 10).kernels}
    assert names != {kernel.name for kernel in drawn(monkeypatch, 10, seed=1).kernels}
    everything = drawn(monkeypatch, 1000)
    assert len(everything.kernels) == 57
    assert everything.instances == Counter(
        {("PersistentDenseGemm", "sm_100a"): 50, ("TgvGemm", "sm_100a"): 7, ("TgvGemm", "sm_103a"): 5}
    )
    assert everything.known_bad == Counter({("TgvGemm", "sm_103a"): 5})
    assert everything.problems == {"sm_100a": 2, "sm_103a": 1}


def test_the_tables_count_what_compiled_and_name_what_failed(monkeypatch, tmp_path):
    found = drawn(monkeypatch, 1000)
    log = tmp_path / "log"
    log.write_text("the compiler's words")
    dense = [kernel for kernel in found.kernels if tool.family_of(kernel)[0] == "PersistentDenseGemm"]
    failures = [
        Failure(
            kernel, f"OpError: {kernel.symbol} at 0x{number:x}: needs {200000 + number} bytes | of 1", log
        )
        for number, kernel in enumerate(dense[:3])
    ]
    artifacts = {
        kernel.digest: Artifact("0" * 64, 1000 * number, FACTS._replace(spill_bytes=number % 2), number)
        for number, kernel in enumerate(dense[3:6], start=1)
    }
    rows = tool.rows(found, artifacts, failures)
    assert [(row.family, row.target, row.drawn, row.compiled, row.failed) for row in rows] == [
        ("PersistentDenseGemm", "sm_100a", 50, 3, 3),
        ("TgvGemm", "sm_100a", 7, 0, 0),
        ("TgvGemm", "sm_103a", 0, 0, 0),
    ]
    assert (rows[0].median_seconds, rows[0].max_seconds, rows[0].median_object_bytes) == (2, 3, 2000)
    assert (rows[0].spilling, rows[0].max_spill_bytes) == (2, 1)
    (reason,) = tool.reasons(failures)
    assert (reason.reason, reason.count) == ("OpError: KERNEL at ADDRESS: needs NUMBER bytes | of 1", 3)
    assert (reason.example, reason.log) == (dense[0].name, "the compiler's words")
    text = tool.tables(rows, [reason])
    (header, *_), *bodies = ([*part.splitlines()] for part in text.split("\n\n"))
    assert all(line.count("|") == header.count("|") for line in text.split("\n\n")[0].splitlines())
    assert bodies[0][2].startswith("| OpError: KERNEL at ADDRESS: needs NUMBER bytes \\| of 1 | 3 | ")
