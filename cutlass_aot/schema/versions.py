"""Versions, compared as numbers and never as text: 0.6.11 is newer than 0.6.2."""

import re

_RELEASE = re.compile(r"^\s*v?(\d+(?:\.\d+)*)")
# Text: compiling it takes long, and only those that order bundles have to.
_WHOLE = (
    r"(?:(\d+)!)?(\d+(?:\.\d+)*)(?:(a|b|rc)(\d+))?(?:\.post(\d+))?(?:\.dev(\d+))?"
    r"(?:\+([a-z0-9]+(?:\.[a-z0-9]+)*))?"
)


def release(version: str) -> tuple[int, ...]:
    """The numeric release part of a version, without trailing zeros.

    ``"0.1.15.post2"`` gives ``(0, 1, 15)``, ``"13.0"`` gives ``(13,)``. Text that does not begin with a
    number is a ValueError.
    """
    match = _RELEASE.match(version)
    if match is None:
        raise ValueError(f"{version!r} is not a version")
    parts = [int(part) for part in match.group(1).split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def without_post(version: str) -> str:
    """The release that a post release corrects: ``"0.1.15.post2"`` gives ``"0.1.15"``.

    Local parts go too; a pre-release stays as it is. Source: version specifiers specification (PEP 440),
    "Post-releases": they correct what does not affect the distributed software, so that the ABI is the same.
    """
    first = version.partition("+")[0].partition(".post")[0]
    return first if is_version(first) else ".".join(map(str, release(version)))


def major_minor(version: str) -> tuple[int, int]:
    """Major and minor number; a missing minor counts as 0."""
    parts = (*release(version), 0)
    return parts[0], parts[1]


def is_version(text: str) -> bool:
    """Whether text is a whole version in the form that :func:`order` reads."""
    return re.fullmatch(_WHOLE, text, re.ASCII) is not None


def order(version: str) -> tuple[tuple[int, str], ...]:
    """Sort key of a whole version: 1.0.dev1, 1.0a1, 1.0rc1, 1.0, 1.0+cu13, 1.0.post1, 1.1 in this order.

    Text that is not a version comes before all versions. Source: version specifiers specification (PEP 440),
    "Summary of permitted suffixes and relative ordering".
    """
    match = re.fullmatch(_WHOLE, version, re.ASCII)
    if match is None:
        return ((-1, version),)
    epoch, numbers, phase, phase_number, post, development, local = match.groups()
    parts = [int(part) for part in numbers.split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    # 1.0.dev1 comes before every phase (a, b, rc), 1.0 after all of them.
    stage = "z" if phase is None and (post is not None or development is None) else phase or ""
    return (
        (int(epoch or 0), ""),
        *((part, "") for part in parts),
        (-1, stage),
        (int(phase_number or 0), ""),
        (-1 if post is None else int(post), ""),
        *([(1 << 62, "")] if development is None else [(int(development), "")]),
        *((int(part) + 1, "") if part.isdigit() else (0, part) for part in (local or "").split(".") if part),
    )
