"""The command that installs an extra: of the checkout at hand, or of packages that an index has."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from cutlass_aot.runtime.machine import installation
from cutlass_aot.runtime.machine.installation import command_for

REQUIREMENTS = [
    "click>=8.1",
    "tomli>=2.0; python_version < '3.11'",
    "cryptography>=42; extra == 'sign'",
    "jax>=0.7; (python_version >= '3.11') and extra == 'jax'",
    'fsspec[http]>=2024.2 ; extra == "remote"',
    "cryptography>=42; extra == 'dev'",
]

Installed = Callable[[object], None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Has the package installed from an origin, as an installer recorded it."""

    def install(origin: object) -> None:
        text = None if origin is None else origin if isinstance(origin, str) else json.dumps(origin)

        class Found:
            def read_text(self, name: str) -> str | None:
                assert name == "direct_url.json"
                return text

        monkeypatch.setattr(installation.metadata, "distribution", lambda name: Found())
        monkeypatch.setattr(installation.metadata, "requires", lambda name: REQUIREMENTS)

    return install


@pytest.mark.parametrize("editable", [True, False])
def test_from_a_checkout(installed: Installed, tmp_path: Path, editable: bool) -> None:
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    installed({"url": checkout.as_uri(), "dir_info": {"editable": True} if editable else {}})
    option = ["-e"] if editable else []
    assert shlex.split(command_for("build")) == ["pip", "install", *option, f"{checkout}[build]"]


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "",
        "not JSON",
        "[]",
        {"url": 7},
        # A wheel, which may be gone; and a checkout that is.
        {"url": "file:///wheels/cutlass_aot-0.1.0-py3-none-any.whl", "archive_info": {}},
        {"url": "file:///gone", "dir_info": {}},
    ],
)
@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("sign", "pip install 'cryptography>=42'"),
        ("remote", "pip install 'fsspec[http]>=2024.2'"),
        ("jax", "pip install 'jax>=0.7; (python_version >= '\"'\"'3.11'\"'\"')'"),
    ],
)
def test_from_elsewhere_packages_are_named(
    installed: Installed, origin: object, extra: str, command: str
) -> None:
    installed(origin)
    assert command_for(extra) == command


def test_again(installed: Installed) -> None:
    installed(None)
    assert command_for("sign", again=True) == "pip install --force-reinstall 'cryptography>=42'"


def test_of_sources_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation.metadata, "distribution", absent)
    checkout = Path(installation.__file__).parents[3]
    assert shlex.split(command_for("build")) == ["pip", "install", "-e", f"{checkout}[build]"]
