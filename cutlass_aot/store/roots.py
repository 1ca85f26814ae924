"""Roots: names whose records, with the blobs they need, are never removed by a collection."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import Any

from cutlass_aot.errors import CorruptFile, StoreError
from cutlass_aot.runtime.files.regular_file import kind_of
from cutlass_aot.schema.encoding import seal, unseal
from cutlass_aot.store.files import entries, obstacle, publish, read, reported, set_aside
from cutlass_aot.store.layout import MAX_RECORD_BYTES, ROOTS, SCHEMA
from cutlass_aot.store.store import Store

Reference = tuple[str, str]
"""Kind and key of a record."""

_KIND = "cutlass-aot root"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]{0,127}")


def set_root(store: Store, name: str, references: Iterable[Reference]) -> None:
    """Keep these records under a name, in place of those that it kept before.

    The name is of letters, digits, ``.``, ``_``, ``+``, ``@`` and ``-``. A record need not be there yet.
    """
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"{name!r} cannot name a root: expected up to 128 letters, digits and . _ + @ -, "
            "beginning with a letter or a digit"
        )
    body = {"name": name, "records": sorted(set(references))}
    publish(seal(_KIND, SCHEMA, body), store.root / ROOTS / name, store=store.root)


def keep_root(store: Store, name: str, references: Any) -> None:
    """Set a root unless it keeps exactly these records; a store that cannot be written to stays as it is.

    ``references`` come from a record: items that are not kind and key are left out.
    """
    kept = [
        (item[0], item[1])
        for item in references or ()
        if isinstance(item, (list, tuple)) and len(item) == 2 and all(isinstance(part, str) for part in item)
    ]
    with contextlib.suppress(StoreError):
        try:
            known = read_root(store, name)
        except (CorruptFile, StoreError):
            known = None
        if kept and known != frozenset(kept):
            set_root(store, name, kept)


def roots(store: Store) -> dict[str, frozenset[Reference]]:
    """The records that each root keeps, by the root's name."""
    found = {}
    with reported("read", store.root / ROOTS):
        other = obstacle(store.root, store.root / ROOTS / "any")
    if other is not None:
        raise StoreError(
            f"{other[0]} is {kind_of(other[1].st_mode)}, expected a directory of roots: what they keep is "
            "not known; build the bundles again"
        )
    for entry in entries(store.root / ROOTS):
        if entry.name.startswith("."):
            continue
        try:
            references = read_root(store, entry.name)
        except (CorruptFile, StoreError) as error:
            raise StoreError(
                f"root {entry.name!r} of {store.root} cannot be read ({error}): what it keeps is not known; "
                "build its bundle again, or give it up with `cutlass-aot store forget`"
            ) from None
        if references is not None:
            found[entry.name] = references
    return found


def read_root(store: Store, name: str) -> frozenset[Reference] | None:
    """The records that a root keeps; None if there is no root of this name."""
    data = read(store.root / ROOTS / name, MAX_RECORD_BYTES)
    if data is None:
        return None
    body = unseal(data, _KIND, SCHEMA, "it")
    if not isinstance(body, dict) or body.get("name") != name or not isinstance(body.get("records"), list):
        raise CorruptFile("it is not the root of this name")
    references = set()
    for item in body["records"]:
        if not isinstance(item, list) or len(item) != 2 or not all(isinstance(part, str) for part in item):
            raise CorruptFile("it names something that is not a record")
        references.add((item[0], item[1]))
    return frozenset(references)


def drop_root(store: Store, name: str) -> bool:
    """Remove a root, also a damaged one; False if there is none. A collection may then remove its records."""
    # Also a name that set_root refuses: such a file stops every collection.
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    path = store.root / ROOTS / name
    if path.is_dir() and not path.is_symlink():
        # Not made by this package: moved out of the way, but not deleted.
        return set_aside(store.root, path)
    with reported("remove", path):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
    return True
