"""tools/check/layout.py on small checkouts: what it counts, and what it says when it is used wrongly."""

from __future__ import annotations

import pytest

from tools.check import layout

A, B, C, D = "abcd"


@pytest.mark.parametrize("words", [[], ["one"], ["one", "bundle", "two"]])
def test_checkouts_without_bundles_are_refused_with_the_usage(words, capsys):
    with pytest.raises(SystemExit) as refused:
        layout.main(words)
    assert refused.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_modules_of_a_cycle_count_as_one_step():
    graph = {A: {B}, B: {C}, C: {B, D}, D: set()}
    assert layout.cycles(graph) == [{B, C}]
    assert layout.import_depth(graph) == 2


def test_the_fullest_folder_counts_folders_of_modules_and_no_package_files(tmp_path):
    inner = tmp_path / "package" / "inner"
    (inner / "deep").mkdir(parents=True)
    for path in ("__init__.py", "one.py", "two.py", "data.json", "deep/three.py"):
        (inner / path).touch()
    assert layout.fullest(tmp_path / "package") == ("package/inner", 3)


def test_lines_are_those_of_each_folder(tmp_path):
    for path, lines in {
        "cutlass_aot/errors.py": 2,
        "cutlass_aot/store/a/b.py": 3,
        "tools/check/c.py": 1,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x\n" * lines)
    assert layout.folder_lines(tmp_path) == {"cutlass_aot": "2", "cutlass_aot/store": "3", "tools/check": "1"}


def test_minutes_are_those_of_the_run_and_of_its_processes():
    assert layout.test_minutes("Command exited\nreal 600.30\nuser 1100.00\nsys 100.00\n") == "10.0, 20.0"
