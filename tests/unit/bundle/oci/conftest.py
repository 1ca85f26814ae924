"""Bundles, and a registry in this process, for the tests of registries."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from cutlass_aot.bundle.oci.push import push_bundle
from cutlass_aot.bundle.write import write_bundle
from tests.support.registries import (
    fake_registry,
)
from tests.support.synthetic import plan


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """No credentials but a test's own, and no waiting between attempts."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("cutlass_aot.bundle.oci.registry._RETRIES", 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two bundles, written once."""
    folder = tmp_path_factory.mktemp("made")
    write_bundle(plan(folder / "linked"), folder / "small")
    write_bundle(replace(plan(folder / "older"), version="0.0.1"), folder / "earlier")
    return folder


@pytest.fixture
def bundle(made, tmp_path):
    return shutil.copytree(made / "small", tmp_path / "made" / "small")


@pytest.fixture
def fake():
    with fake_registry() as server:
        yield server


@pytest.fixture(scope="module")
def pushed(made):
    """What a registry holds after a push."""
    with fake_registry() as server:
        push_bundle(made / "small", f"{server.name}/k/small:1", plain_http=True)
    return server


@pytest.fixture
def there(made, pushed, tmp_path, fake):
    """A bundle pushed as ``1`` to a fake registry, and an older one at the output."""
    fake.blobs.update(pushed.blobs)
    fake.manifests.update(pushed.manifests)
    return shutil.copytree(made / "earlier", tmp_path / "out" / "small")


@pytest.fixture
def key(tmp_path):
    """A private key; its public one is beside it."""
    pytest.importorskip("cryptography")
    from cutlass_aot.bundle.sign import new_key

    (tmp_path / "keys").mkdir()
    for name in ("ours", "other"):
        new_key(tmp_path / "keys" / f"{name}.pem")
    return tmp_path / "keys" / "ours.pem"
