"""What strangers have named reaches the terminal with its control characters escaped."""

from __future__ import annotations

import ast
import pickle
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot import cli
from cutlass_aot.cli import main
from cutlass_aot.cli.output.render import prose, table
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import BundleError, CompileError, CorruptFile, CutlassAotError, printable
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.runtime.search_path import installed_bundles
from cutlass_aot.schema.bundles.catalog import VersionRequirements
from cutlass_aot.schema.entry_points import BUNDLES
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, RankedProblems, Ranking
from tests.support.bundles import write_bundle
from tests.support.kernels import gemm, operand
from tests.support.paths import REPOSITORY

TITLE = "\x1b]0;owned\x07"
FORGED = "bundle good 1.0: signed"
PRINTERS = ("print", "click.echo", "click.secho")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text and µs", "plain text and µs"),
        ("two\nlines\tand a tab", "two\\nlines\\tand a tab"),
        ("other\u2028lines\u2029\x85\x0b\x0c\x1c", "other\\u2028lines\\u2029\\x85\\x0b\\x0c\\x1c"),
        (TITLE, "\\x1b]0;owned\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("back\rwards\x08", "back\\rwards\\x08"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\udc80", "\\udc80"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_what_is_printed_has_none(text: str) -> None:
    assert printable(text).isprintable()
    assert all(character.isprintable() or character in "\n\t" for character in printable(text, "\n\t"))


@pytest.mark.parametrize("breaks", ["\n", "\r", "\r\n", "\u2028", "\u2029", "\x85", "\x0b", "\t"])
def test_a_name_cannot_look_like_a_line(breaks: str, capfd: pytest.CaptureFixture[str]) -> None:
    name = f"kernel{breaks}{FORGED}"
    say(f"{name}: 3 kernels", f"of {name}")
    say(*table([(name, 1)], ("kernel", "count"), [(f"group {name}",)]), *prose(f"a line on {name}"))
    printed = "".join(capfd.readouterr())
    assert len(printed.splitlines()) == 6
    assert not any(line.startswith(FORGED) for line in printed.splitlines())
    assert "\t" not in printed


def test_an_error_of_several_lines_is_printed_as_such(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise CompileError("k does not compile:\n --> k.py:3\n  |\n3 |\treturn 1")

    monkeypatch.setattr(cli.group, "main", fails)
    with pytest.raises(SystemExit):
        main(["ls", "x"])
    assert capfd.readouterr().err.splitlines() == [
        "error: k does not compile:", " --> k.py:3", "  |", "3 | return 1",
    ]  # fmt: skip


HOSTILE = f"x\n{FORGED}"
IN_CATALOGS: dict[str, dict[str, object]] = {
    "device": {"device": HOSTILE},
    "version": {"version": HOSTILE},
    "provenance": {"provenance": {HOSTILE: "1"}},
    "toolchain": {"provenance": {"dsl": HOSTILE}},
    "tvm_ffi": {"requirements": VersionRequirements("12.0", f"0.1.15\n{FORGED}", "2.28")},
}
IN_KERNELS: dict[str, dict[str, object]] = {
    "operation": {"operation": HOSTILE},
    "accumulator": {"accumulator": HOSTILE},
    "generator": {"generator": HOSTILE},
    "operand": {"operands": (operand("a"), operand("b", layout="n"), operand("out")._replace(name=HOSTILE))},
    "name in a design": {"design": {"tile_shape": (64, 64, 64), HOSTILE: 1}},
    "value in a design": {"design": {"tile_shape": (64, 64, 64), "family": HOSTILE}},
    "parameter": {"parameters": {HOSTILE: 1}},
    "value of a parameter": {"parameters": {"act": HOSTILE}},
    "constant": {"constants": {HOSTILE: 1}},
    "cost": {"cost": HOSTILE},
    "epilogue": {"epilogue": HOSTILE},
}


def read_all(root: Path) -> None:
    """Read every record of a bundle."""
    for each in open_bundle(root, check=False).kernels():
        _ = each.entry, [each._group.ranking(one) for one in each.group.rankings]


@pytest.mark.parametrize("where", [*IN_CATALOGS, *IN_KERNELS, "GPU", "origin"])
def test_no_name_in_a_bundle_can_forge_a_line(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # The writer's own files must have names; what is hostile is in the records.
    monkeypatch.setattr(
        "tests.support.bundles.group_names", lambda kernels: {k.group: "group" for k in kernels}
    )
    kernel = gemm(**IN_KERNELS.get(where, {}))  # type: ignore[arg-type]
    problems = RankedProblems([RankedProblem(Extents(1, 64, 64, 64), (kernel.digest,), (1e-6,))])
    gpu, origin = (HOSTILE if where == name else "here" for name in ("GPU", "origin"))
    ranking = Ranking(kernel.group, gpu, True, origin, problems)
    root = write_bundle(tmp_path / "b", [kernel], rankings=[ranking], **IN_CATALOGS.get(where, {}))
    for command in (
        ["ls"],
        ["show", "gemm"],
        ["show", "none"],
        ["verify"],
        ["choose", "--shape", "64x64x64"],
        ["doctor"],
    ):
        for json_too in ([], ["--json"]):
            with pytest.raises(SystemExit) as caught:
                main([command[0], str(root), *command[1:], *json_too])
            assert isinstance(caught.value.code, int), command
            lines = "".join(capfd.readouterr()).splitlines()
            assert lines
            assert not any(line.lstrip().startswith(FORGED) for line in lines), (command, lines)
    # All are refused when they are read, but a formula, which may have lines where it is written.
    if where != "epilogue":
        with pytest.raises(
            CorruptFile, match=r"one line without control|a name with control|letters, digits"
        ):
            read_all(root)
    else:
        read_all(root)


def test_the_metadata_of_a_wheel_cannot_forge_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "hostile-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hostile\nVersion: 1\n {FORGED}\n")
    (folder / "entry_points.txt").write_text(f"[{BUNDLES}]\nhostile = hostile_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = [item for item in installed_bundles() if item.name == "hostile"]
    assert "\n" not in found.version
    assert found.version.endswith(f"\\n{FORGED}") or found.version.endswith(f"\\n {FORGED}")
    with pytest.raises(SystemExit):
        main(["installed"])
    assert not any(line.lstrip().startswith(FORGED) for line in capfd.readouterr().out.splitlines())


@pytest.mark.parametrize(("command", "more"), [("ls", []), ("show", ["none"]), ("verify", [])])
def test_a_bundle_whose_texts_are_escape_sequences(
    command: str, more: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = write_bundle(tmp_path / "bundle", [gemm()], name=TITLE, device=TITLE, provenance={TITLE: TITLE})
    with pytest.raises(SystemExit):
        main([command, str(root), *more])
    printed = "".join(capfd.readouterr())
    assert "\\x1b" in printed
    assert "\x1b" not in printed


def test_an_error_that_names_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ls", str(tmp_path / TITLE)])
    printed = "".join(capfd.readouterr())
    assert "\\x1b]0;owned" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    "arguments",
    [
        (TITLE,),
        ("plan", "m.toml", TITLE),
        ("ls", f"--{TITLE}"),
        ("build", "m.toml", "--executor", TITLE),
        ("try", "axpy", "--extent", TITLE),
        ("build", TITLE, "--shard"),
        ("store", TITLE),
    ],
)
def test_words_of_the_user_in_an_error_of_use(
    arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert caught.value.code == 2
    printed = "".join(capfd.readouterr())
    assert "Error: " in printed
    assert "\x1b" not in printed
    assert "\x07" not in printed


def test_an_error_wherever_it_is_shown(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "bundle", [gemm()], name=TITLE)
    with pytest.raises(CutlassAotError) as caught:
        open_bundle(root, check=False).kernel("none")
    shown = "".join(traceback.format_exception(caught.value)) + f"{caught.value}"
    assert shown.count("\\x1b]0;owned\\x07") == 2
    assert "\x1b" not in shown
    # What it was made of stays as it is.
    assert BundleError(TITLE).args == (TITLE,)
    assert pickle.loads(pickle.dumps(BundleError(TITLE))).args == (TITLE,)


def test_nothing_else_prints_what_it_did_not_make_itself() -> None:
    found = [
        path.stem
        for path in (REPOSITORY / "cutlass_aot" / "cli").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        # Templates are programs of users'.
        if "templates" not in path.parts and isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTERS
    ]
    # The moving line of tuning, which has numbers alone, and the flush at the end.
    assert sorted(found) == ["__init__", "terminal", "tune_report", "tune_report", "tune_report"]
