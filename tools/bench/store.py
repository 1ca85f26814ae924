"""How small a store's objects get, and how long that takes, by level of compression.

    python -m tools.bench.store build/store

Prints a line a level: bytes kept for a byte of object, records included, and milliseconds of CPU an object.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from cutlass_aot.schema.compression import compress
from cutlass_aot.store.store import Store

LEVELS = (3, 9, 12, 15, 17, 19)
MOST = 200


def objects_of(store: Store) -> tuple[list[bytes], int]:
    """Objects of a store's kernels, at most :data:`MOST`, and the bytes of their records."""
    objects: list[bytes] = []
    records = 0
    for kind, key, path in store.records():
        body = store.get_record(kind, key) if kind == "kernel" and len(objects) < MOST else None
        data = store.get_blob(str(body["sha256"])) if body else None
        if data is not None:
            objects.append(data)
            records += path.stat().st_size
    if not objects:
        raise SystemExit(f"{store.root} has no kernels: build something into it first")
    return objects, records


def measure(objects: Sequence[bytes], level: int) -> tuple[int, float]:
    """Bytes of all objects when compressed, and seconds of CPU that takes."""
    begun = time.process_time()
    return sum(len(compress(data, level)) for data in objects), time.process_time() - begun


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", type=Path)
    store = Store(parser.parse_args().store, create=False)
    objects, records = objects_of(store)
    print(f"{len(objects)} objects")
    for level in LEVELS:
        kept, seconds = measure(objects, level)
        ratio = (kept + records) / sum(map(len, objects))
        print(f"level {level:2}: {ratio:.4f} of their size, {seconds / len(objects) * 1e3:.2f} ms each")


if __name__ == "__main__":
    main()
