"""What mkdocs does to a page before it renders it: `make docs`.

Pages are written for the repository, where they link to sources too, and where the information string of a
fenced block says who runs it ("python gpu"). The site has the pages of docs/ alone: a link that leaves docs/
becomes its text and the path in the repository.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```[\w+-]+) [\w -]+$", re.MULTILINE)


def without_outside_links(markdown: str, page: str) -> str:
    """``markdown`` with links that leave docs/ as text; ``page`` is its path below docs/."""

    def replaced(match: re.Match[str]) -> str:
        text, target = match.groups()
        if re.match(r"[a-z][a-z+.-]*:|#", target):
            return match[0]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target.partition("#")[0]))
        return match[0] if path.startswith("docs/") else f"{text} (`{path}`)"

    return _LINK.sub(replaced, markdown)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return without_outside_links(_FENCE.sub(r"\1", markdown), page.file.src_uri)
