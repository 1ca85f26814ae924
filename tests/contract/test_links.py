"""Every relative link of the repository's Markdown leads to a file and a heading that exist. Offline."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY


def pages() -> list[Path]:
    """Every Markdown file that git tracks, or would."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    # A source archive has no git; its folders are read then.
    names = listed.stdout.splitlines() or [
        path.relative_to(REPOSITORY).as_posix()
        for folder in ("docs", "examples", "tests", "tools")
        for path in (REPOSITORY / folder).rglob("*.md")
    ]
    return sorted(REPOSITORY / name for name in {*names, "README.md"} if (REPOSITORY / name).is_file())


def prose(text: str) -> str:
    """A page without its fenced blocks, indented blocks and code in a line, where brackets are not links."""
    text = re.sub(r"^(```+)[^\n]*\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them: lower case, no punctuation, `-` for spaces."""
    text = re.sub(r"^(```+)[^\n]*\n.*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w -]", "", shown.lower()).replace(" ", "-")
        same = sum(1 for other in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", other))
        found.add(f"{name}-{same}" if same else name)
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", prose(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.is_relative_to(REPOSITORY):
            dead.append(f"{target}: leaves the repository")
        elif not there.exists():
            dead.append(f"{target}: no such file")
        elif anchor and (there.suffix != ".md" or anchor not in anchors(there)):
            dead.append(f"{target}: no such heading")
    assert not dead, "\n".join(dead)


def test_every_page_is_in_the_index() -> None:
    docs = REPOSITORY / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    listed = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", index)}
    decisions = set((docs / "internals" / "decisions").glob("0*.md"))
    there = {path.relative_to(docs).as_posix() for path in set(docs.rglob("*.md")) - decisions}
    assert there - listed == {"index.md"}


def test_every_page_that_code_names_is_there() -> None:
    files = [REPOSITORY / "Makefile", REPOSITORY / "pyproject.toml"]
    for folder in ("cutlass_aot", "examples", "manifests", "tests", "tools"):
        files += [path for path in (REPOSITORY / folder).rglob("*") if path.suffix in (".py", ".c", ".toml")]
    named = {
        name
        for path in files
        for name in re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert named
    assert [name for name in sorted(named) if not (REPOSITORY / name).is_file()] == []
