"""Words that this project does not use: each has a standard term, which stands beside it here."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.paths import REPOSITORY

WORDS = {
    r"choosers?": "dispatch cache",
    r"short[ _]way": "fast path",
    r"shadow(?:s|ing)\b": "precedence",
    r"contenders?": "candidate",
    r"zygotes?": "fork server",
    r"\b(?:bury|buried)\b": "reap, reaped",
    r"\bcrew": "thread pool",
    r"\btroubles?\b": "failure",
    r"levels? behind": "upstream store",
    r"store-behind": "upstream",
    r"leavings": "leftovers",
    r"known[ _]answer": "up-to-date check",
    r"sightings?": "captured kernel",
    r"held against": "checked against",
    r"remarks?": "warning",
    r"(?<!there )\b(?:is|are|was|were) no (?!longer|more|whole fat binary)": "is not a",
    r"candidates' estimate": "cost model",
    r"\btrials?\b": "test",
    r"\bassembled\b": "installed",
    r"\bfreed\b": "removed",
    r"\bbuild notes?\b": "build state",
    r"(?-i:\b[KMGT]iB\b|\b[0-9.]{1,6} kB\b)": "KB, MB or GB, of 1,000 bytes",
}
"""Patterns of words, without regard to case, and what is said instead. "There is no bundle" says something
else than "it is no bundle". A message of shim.c has the phrase still: its text is in every library."""

NAMES = {
    "asked": "query",
    "bury": "reap",
    "freed": "removed",
    "needs": "requirements",
    "pins": "dependency check",
    "trial": "toolchain self-test",
    "wanted": "requirements",
}
"""Words that are natural in a sentence ("was asked for"), and say nothing as the name of a thing in code."""

ALLOWED = (
    "cutlass_aot/programs/without_dsl/compiler.py",
    "docs/internals/decisions/0015-one-bundle-one-directory.md",
    "tests/contract/test_words.py",
)
"""Files in which a word of the left column stands for something else, or is spoken of."""

_PATHS = ("cutlass_aot", "tests", "tools", "docs", "examples", "README.md", "CONTRIBUTING.md", "SECURITY.md")


def _listed(*paths: str) -> list[str]:
    """Files of the repository below these paths, without those that may have every word."""
    listed = subprocess.run(
        ["git", "ls-files", *paths], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [name for name in listed if name not in ALLOWED]


def _text(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    """Every text in the repository, after its name. No pattern goes over the end of a line."""
    return [
        (name, _text(name))
        for name in _listed(*_PATHS)
        if name.endswith((".py", ".md", ".c", ".toml", ".j2"))
    ]


@pytest.mark.parametrize("pattern", sorted(WORDS))
def test_a_word_of_the_table_is_gone(texts: list[tuple[str, str]], pattern: str) -> None:
    word = re.compile(pattern, re.IGNORECASE)
    found = [
        (f"{name}:{1 + text.count(chr(10), 0, match.start())}", match.group())
        for name, text in texts
        for match in word.finditer(text)
    ]
    assert not found, f"say {WORDS[pattern]} instead"


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that a module gives to things, with their lines; a test's own name is a sentence."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                if not name.startswith("test_"):
                    yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield node.lineno, name


def _words(name: str) -> set[str]:
    """The words of a name, whether it is written in lower case, in capitals or ``LikeThis``."""
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def test_no_name_in_code_is_a_word_of_the_table() -> None:
    found = [
        f"{name}:{line}: {identifier}: say {NAMES[word]}"
        for name in _listed(*_PATHS)
        if name.endswith(".py")
        for line, identifier in _names(ast.parse(_text(name)))
        for word in sorted(NAMES.keys() & _words(identifier))
    ]
    assert not found, "\n".join(found)


def test_files_that_are_left_out_exist() -> None:
    assert all((REPOSITORY / name).is_file() for name in ALLOWED)
