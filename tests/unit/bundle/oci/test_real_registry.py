"""Push to and pull from Debian's docker-registry."""

from __future__ import annotations

import pytest

pytest.importorskip("oras")

from cutlass_aot.bundle.oci.pull import pull_bundle
from cutlass_aot.bundle.oci.push import push_bundle
from cutlass_aot.errors import (
    CorruptFile,
    RegistryError,
)
from tests.support.oci import tree
from tests.support.registries import (
    log_in,
    real_registry,
    real_registry_program,
)


@pytest.fixture
def program():
    found = real_registry_program()
    if found is None:
        pytest.skip(
            "no docker-registry: install the distribution's, or `make registry` (Debian, needs no root)"
        )
    return found


def test_a_real_registry_that_wants_a_login(program, bundle, tmp_path):
    with real_registry(program, tmp_path / "registry", login=True) as host:
        name = f"{host}/team/small:1.0"
        with pytest.raises(RegistryError, match=r"refuses access .*\(status 401\)"):
            push_bundle(bundle, name, plain_http=True)
        log_in(tmp_path / "docker", host, "a-wrong-password")
        with pytest.raises(RegistryError, match=r"refuses access .*\(status 401\)"):
            push_bundle(bundle, name, plain_http=True)
        log_in(tmp_path / "docker", host)
        pushed = push_bundle(bundle, name, plain_http=True)
        assert pull_bundle(name, tmp_path / "out", plain_http=True).name == pushed.name
        assert tree(tmp_path / "out") == tree(bundle)


def test_a_real_registry(program, bundle, tmp_path):
    with real_registry(program, tmp_path / "registry") as host:
        pushed = push_bundle(bundle, f"{host}/team/small:1.0", plain_http=True)
        assert push_bundle(bundle, f"{host}/team/small:latest", plain_http=True).uploaded == 0
        for number, requested in enumerate(
            (f"{host}/team/small:1.0", f"{host}/team/small:latest", pushed.name)
        ):
            out = tmp_path / f"out{number}"
            assert pull_bundle(requested, out, plain_http=True).name == pushed.name
            assert tree(out) == tree(bundle)
        with pytest.raises(RegistryError, match="status 404"):
            pull_bundle(f"{host}/team/small:2.0", tmp_path / "none", plain_http=True)
        # On the registry's disk: found out by it or by us, and never put in place.
        blobs = [path for path in (tmp_path / "registry" / "data").rglob("data") if path.stat().st_size > 30]
        damaged = next(path for path in blobs if path.read_bytes()[:4] == b"\x28\xb5\x2f\xfd")
        data = bytearray(damaged.read_bytes())
        data[20] ^= 1
        damaged.write_bytes(data)
        with pytest.raises(CorruptFile, match="SHA-256"):
            pull_bundle(pushed.name, tmp_path / "none", plain_http=True)
        assert not (tmp_path / "none").exists()
