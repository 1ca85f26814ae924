"""What strangers have named reaches the terminal with its control characters escaped."""

from __future__ import annotations

import ast
import pickle
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.cli import main
from cutlass_aot.errors import BundleError, CutlassAotError, printable
from cutlass_aot.runtime.bundle import open_bundle
from tests.support.bundles import write_bundle
from tests.support.kernels import gemm
from tests.support.paths import REPOSITORY

TITLE = "\x1b]0;owned\x07"
PRINTERS = ("print", "click.echo", "click.secho")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text and µs", "plain text and µs"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
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
    assert all(character.isprintable() or character in "\n\t" for character in printable(text))


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
