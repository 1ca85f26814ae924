"""How to install an extra of this package on this machine, from metadata alone."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "cutlass-aot"

# "jax>=0.9.1; (python_version >= '3.11') and extra == 'jax'".
_REQUIREMENT = re.compile(r"([^;]+?)\s*;(.*)\bextra\s*==\s*['\"]([^'\"]+)['\"]\s*\)?\s*", re.DOTALL)


def command_for(extra: str, *, again: bool = False) -> str:
    """A command that installs what an extra needs, and works where this package is not in an index.

    From a checkout it is an installation of that checkout, else of the extra's packages by their names.
    ``again`` is for packages that are there and damaged.
    """
    pip = "pip install --force-reinstall" if again else "pip install"
    checkout, editable = _checkout()
    if checkout is not None:
        return f"{pip} {'-e ' if editable else ''}{shlex.quote(f'{checkout}[{extra}]')}"
    packages = _packages(extra)
    # Without metadata nothing says what the extra is; a release that is in an index has it.
    return " ".join([pip, *map(shlex.quote, packages or [f"{DISTRIBUTION}[{extra}]"])])


def _checkout() -> tuple[Path | None, bool]:
    """The checkout that this package is installed from or runs in, and whether it is an editable one."""
    try:
        # Where an installer found it. Source: PyPA specifications, "Recording the Direct URL Origin".
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        folder = Path(__file__).resolve().parents[3]
        return (folder if _is_checkout(folder) else None), True
    try:
        origin = json.loads(text or "{}")
        url, directory = urlsplit(origin.get("url", "")), origin.get("dir_info")
        folder = Path(unquote(url.path))
        editable = isinstance(directory, dict) and directory.get("editable") is True
    except (ValueError, AttributeError, TypeError):
        return None, False
    found = directory is not None and url.scheme == "file" and _is_checkout(folder)
    return (folder if found else None), editable


def _is_checkout(folder: Path) -> bool:
    try:
        return (folder / "pyproject.toml").is_file()
    except (OSError, ValueError):
        return False


def _packages(extra: str) -> list[str]:
    """Requirements of an extra as pip takes them; a marker beside the extra stays."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for requirement in requirements:
        match = _REQUIREMENT.fullmatch(requirement)
        if match is not None and match[3] == extra:
            marker = re.sub(r"\s+and\s*\(?\s*$", "", match[2]).strip()
            found.append(f"{match[1]}; {marker}" if marker else match[1])
    return found
