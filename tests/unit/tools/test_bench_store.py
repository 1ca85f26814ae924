"""tools/bench/size.py on a store: what the levels of compression come to."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

from cutlass_aot.store.store import Store
from tests.support.stores import KEY
from tools.bench import size as bench_size


def test_every_level_is_a_row(tmp_path):
    store = Store(tmp_path)
    data = b"object code" * 1000
    sha256 = store.put_blob(data)
    store.put_record("kernel", KEY, {"sha256": sha256}, blobs={sha256: len(data)})
    store.put_record("plan", KEY, {})
    rows, numbers, _ = bench_size.part_levels(Namespace(), SimpleNamespace(store=store))
    assert len(rows) == len(bench_size.STORE_LEVELS)
    size = store.blob_path(sha256).stat().st_size + store.record_path("kernel", KEY).stat().st_size
    assert rows[3].what == "1 objects in a store, level 15"
    assert rows[3].measured.startswith(f"{size / len(data):.4f} of their size")
    assert numbers["15"]["ratio"] == size / len(data)
