"""Words that this project does not use: each has a standard term, which stands beside it here."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.paths import REPOSITORY

WORDS = {
    r"choosers?": "dispatch cache",
    r"short[ _]way": "fast path",
    r"shadow(?:s|ing)\b": "precedence",
    r"contenders?": "candidate",
    r"zygotes?": "fork server",
    r"buried": "reaped",
    r"\bcrew": "thread pool",
    r"\btroubles?\b": "failure",
    r"levels? behind": "upstream store",
    r"store-behind": "upstream",
    r"leavings": "leftovers",
    r"known[ _]answer": "up-to-date check",
    r"sightings?": "captured kernel",
    r"held against": "checked against",
    r"remarks?": "warning",
    r"is no (?:bundle|wheel|store|version|generator|shard|directory|digest|library)\b": "is not a",
}
"""Patterns of words, without regard to case, and what is said instead."""

ALLOWED = (
    "cutlass_aot/programs/without_dsl/compiler.py",
    "docs/internals/decisions/0015-one-bundle-one-directory.md",
    "docs/internals/layout.md",
    "tests/contract/test_words.py",
)
"""Files in which a word of the left column stands for something else, or is spoken of."""

_PATHS = ("cutlass_aot", "tests", "tools", "docs", "examples", "README.md", "CONTRIBUTING.md", "SECURITY.md")


@pytest.fixture(scope="module")
def lines() -> list[tuple[str, str]]:
    """Every line of text in the repository, after where it stands."""
    listed = subprocess.run(
        ["git", "ls-files", *_PATHS], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [
        (f"{name}:{number}", line)
        for name in listed
        if name.endswith((".py", ".md", ".c", ".toml", ".j2")) and name not in ALLOWED
        for number, line in enumerate((REPOSITORY / name).read_text(encoding="utf-8").splitlines(), 1)
    ]


@pytest.mark.parametrize("pattern", sorted(WORDS))
def test_a_word_of_the_table_is_gone(lines: list[tuple[str, str]], pattern: str) -> None:
    word = re.compile(pattern, re.IGNORECASE)
    found = [(place, line.strip()) for place, line in lines if word.search(line)]
    # "There is no bundle" says another thing than "it is no bundle".
    found = [(place, line) for place, line in found if not re.search(r"there (?:is|was) no ", line, re.I)]
    assert not found, f"say {WORDS[pattern]} instead"


def test_files_that_are_left_out_exist() -> None:
    assert all((REPOSITORY / name).is_file() for name in ALLOWED)
