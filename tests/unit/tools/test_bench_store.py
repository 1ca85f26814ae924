"""tools/bench/store.py: what the levels of compression come to."""

from __future__ import annotations

import pytest

from cutlass_aot.store.store import Store
from tests.support.stores import KEY
from tools.bench import store as bench_store


def test_every_level_is_a_line(tmp_path, monkeypatch, capsys):
    store = Store(tmp_path)
    data = b"object code" * 1000
    sha256 = store.put_blob(data)
    store.put_record("kernel", KEY, {"sha256": sha256}, blobs={sha256: len(data)})
    store.put_record("plan", KEY, {})
    monkeypatch.setattr("sys.argv", ["store.py", str(tmp_path)])
    bench_store.main()
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "1 objects"
    assert len(lines) == len(bench_store.LEVELS)
    size = store.blob_path(sha256).stat().st_size + store.record_path("kernel", KEY).stat().st_size
    assert f"level 15: {size / len(data):.4f} of their size" in lines[3]


def test_an_empty_store_says_what_to_do(tmp_path):
    with pytest.raises(SystemExit, match="build something into it first"):
        bench_store.objects_of(Store(tmp_path))
