"""What an exception says to a kernel's author: no colours, and the line of their code that it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot.errors import ManifestError
from cutlass_aot.generators.compile_errors import explain


def raised(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (any exception is explained)
        call()
    return caught.value


def test_the_line_is_the_innermost_one_outside_of_the_standard_library() -> None:
    error = raised(lambda: json.loads("{"))
    text = explain(error)
    assert text.startswith("JSONDecodeError: Expecting property name")
    assert f"--> {__file__}:" in text
    assert text.endswith('error = raised(lambda: json.loads("{"))')


def test_the_line_is_that_of_the_first_cause() -> None:
    def fail() -> None:
        try:
            int("x")
        except ValueError as error:
            raise RuntimeError("while compiling") from error

    text = explain(raised(fail))
    assert text.startswith("RuntimeError: while compiling\n")
    assert text.endswith('|             int("x")')


def test_a_message_that_names_its_line_is_left_as_it_is_but_for_colours() -> None:
    message = "\n\x1b[91m\x1b[1merror:\x1b[0m wrong\n  \x1b[94m-->\x1b[0m kernel.py:3\n"
    assert explain(raised(lambda: _fail(message))) == "ValueError: \nerror: wrong\n  --> kernel.py:3\n"


def _fail(message: str) -> None:
    raise ValueError(message)


def test_a_syntax_error_names_the_line_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("import os\ndef f(:\n")
    text = explain(raised(lambda: compile(path.read_text(), str(path), "exec")))
    assert text.endswith(f" --> {path}:2\n  |\n2 | def f(:")


def test_an_error_of_this_package_alone_has_no_line(tmp_path: Path) -> None:
    from cutlass_aot.manifest.model import load_manifest

    path = tmp_path / "m.toml"
    path.write_text("[bundle]")
    with pytest.raises(ManifestError) as caught:
        load_manifest(path)
    # Without this test's own frame.
    own = caught.value.__traceback__
    error = caught.value.with_traceback(own and own.tb_next)
    assert explain(error) == f"ManifestError: {error}"


def test_a_misspelt_keyword_of_a_declaration_is_told_what_is_meant() -> None:
    options: dict[str, Any] = {"tunning": {"threads": [128]}}
    text = explain(raised(lambda: cutlass_aot.kernel(name="x", **options)))
    assert "unexpected keyword argument 'tunning': expected some of name, params, tuning, cost, " in text
    assert "; did you mean 'tuning'?\n" in text
    options = {"writen": True}
    text = explain(raised(lambda: cutlass_aot.Operand("x", "f32", (), **options)))
    assert "; did you mean 'written'?\n" in text


def test_a_misspelt_keyword_of_another_function_is_left_as_it_is() -> None:
    def compute(threads: int) -> None: ...

    options: dict[str, Any] = {"tread": 1}
    text, _, _ = explain(raised(lambda: compute(**options))).partition("\n")
    assert text.endswith("unexpected keyword argument 'tread'")
