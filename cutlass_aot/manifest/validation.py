"""Checked values of a TOML table; errors name the key, what was found and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.words import closest, did_you_mean


def unknown(
    where: str,
    found: object,
    allowed: Sequence[str],
    meant: Callable[[object, Iterable[str]], str] = did_you_mean,
) -> str:
    """The message for a value that is none of ``allowed``; it ends as ``meant`` says."""
    return f"{where}: unknown {found!r}: expected one of {', '.join(allowed)}{meant(found, allowed)}"


def known(
    table: Mapping[str, Any], allowed: Sequence[str], where: str, elsewhere: Mapping[str, str] | None = None
) -> None:
    """Refuse keys that are not ``allowed``; ``elsewhere`` says of keys of other places where they belong."""
    for key in table:
        if key not in allowed:
            place = (elsewhere or {}).get(key)
            raise ManifestError(
                f"unknown key {key!r} in {where}: expected one of {', '.join(allowed)}"
                + (f"; {key!r} belongs {place}" if place else did_you_mean(key, allowed))
            )


def alone(table: Mapping[str, Any], key: str, others: Sequence[str], where: str) -> None:
    """Refuse each of ``others`` in a table that has ``key``."""
    for other in others:
        if other in table:
            raise ManifestError(f"{where}: give either `{key}` or `{other}`, not both")


def list_of_tables(value: object, name: str, message: str) -> list[dict[str, Any]]:
    """An array of tables, as ``[[name]]`` gives it; a :class:`ManifestError` with the message otherwise."""
    if isinstance(value, dict):
        raise ManifestError(f"[{name}] is a single table: write [[{name}]], with two brackets")
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise ManifestError(message)
    return value


def text(table: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    """Text that is not empty; ``default`` if the key is missing."""
    value = table.get(key, default)
    if not isinstance(value, str) or not value:
        found = "missing" if value is None else repr(value)
        written = closest(key, table) if value is None else None
        misspelt = f"; {written!r} may be meant for it" if written else ""
        raise ManifestError(f"{where}.{key}: {found}, expected text{misspelt}")
    return value


def strings(table: Mapping[str, Any], key: str, where: str, default: tuple[str, ...]) -> list[str]:
    """A list of texts, none empty; a text alone is a list of one; ``default`` if the key is missing."""
    value = table.get(key, list(default))
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ManifestError(f"{where}.{key}".lstrip(".") + f": {value!r}, expected a list of text")
    return value


def words(
    table: Mapping[str, Any],
    key: str,
    where: str,
    allowed: tuple[str, ...],
    default: tuple[str, ...] | None = None,
    meant: Callable[[object, Iterable[str]], str] = did_you_mean,
) -> tuple[str, ...]:
    """A non-empty list of distinct words out of ``allowed``; ``default`` if the key is missing.

    ``meant`` is the end of a message about another word.
    """
    if key not in table and default is not None:
        return default
    if key not in table:
        raise ManifestError(f"{where}.{key}: missing, expected some of {', '.join(allowed)}")
    found = strings(table, key, where, ())
    if not found:
        raise ManifestError(f"{where}.{key}: empty, expected some of {', '.join(allowed)}")
    for word in found:
        if word not in allowed:
            raise ManifestError(unknown(f"{where}.{key}", word, allowed, meant))
    return tuple(dict.fromkeys(found))


def is_whole_number(value: object, largest: int = 2**63 - 1) -> bool:
    """Whether a TOML value is a whole number from 1 to ``largest``; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= largest
