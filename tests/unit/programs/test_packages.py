"""Known packages: what tells them the GPU, and what turns their own caches off."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from cutlass_aot.errors import ManifestError
from cutlass_aot.programs.start import packages
from cutlass_aot.programs.start.packages import (
    KNOWN_PACKAGES,
    ProgramPackage,
    cache_environment,
    caches_left_on,
    target_environment,
)


def test_every_known_package_has_a_cache_that_is_turned_off():
    off = cache_environment()
    assert off["FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"] == "0"
    assert off["QUACK_CACHE_ENABLED"] == "0"
    assert off["FLASHINFER_CUTE_DSL_DISABLE_CACHE"] == "1"
    assert off["SGLANG_CUTE_AOT_CACHE_DIR"] == ""
    assert off["CUDNN_FRONTEND_DISABLE_COMPILED_CACHE"] == "1"
    assert all(package.caches_off for package in KNOWN_PACKAGES)


def test_packages_are_told_the_target():
    assert target_environment("sm_90a", 132) == {
        "CUTE_DSL_ARCH": "sm_90a",
        "FLASH_ATTENTION_ARCH": "sm_90",
        "FLASH_ATTENTION_NUM_SMS": "132",
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        "QUACK_ARCH": "90",
    }
    assert target_environment("sm_100f", 148)["FLASHINFER_CUDA_ARCH_LIST"] == "10.0f"


def test_what_is_no_target_is_refused():
    with pytest.raises(ValueError, match="not a target"):
        target_environment("hopper", 132)


def entry_points(monkeypatch, *found):
    monkeypatch.setattr(packages.metadata, "entry_points", lambda group: list(found))


def entry_point(name, value, package):
    return SimpleNamespace(name=name, value=value, load=lambda: package)


def test_a_package_describes_itself_by_an_entry_point(monkeypatch):
    mine = ProgramPackage("mine", {"MINE_SMS": "{sm_count}"}, {"MINE_CACHE": "0"}, ("mine.cache:ON",))
    entry_points(monkeypatch, entry_point("mine", "mine:PACKAGE", mine))
    assert target_environment("sm_90a", 132)["MINE_SMS"] == "132"
    assert cache_environment()["MINE_CACHE"] == "0"


def test_an_entry_point_comes_before_what_is_known(monkeypatch):
    newer = ProgramPackage("quack-kernels", {}, {"QUACK_CACHE": "off"})
    entry_points(monkeypatch, entry_point("quack", "quack:PACKAGE", newer))
    assert "QUACK_ARCH" not in target_environment("sm_90a", 132)
    assert cache_environment()["QUACK_CACHE"] == "off"


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([entry_point("one", "one:PACKAGE", {"name": "one"})], "gives dict, expected a ProgramPackage"),
        (
            [
                entry_point("one", "one:PACKAGE", ProgramPackage("same")),
                entry_point("two", "two:PACKAGE", ProgramPackage("same")),
            ],
            "describes same, which one:PACKAGE describes too",
        ),
        ([SimpleNamespace(name="gone", value="gone:PACKAGE", load=lambda: 1 / 0)], "cannot be imported"),
    ],
)
def test_an_entry_point_of_something_else_is_refused(monkeypatch, points, message):
    entry_points(monkeypatch, *points)
    with pytest.raises(ManifestError, match=message):
        packages.packages()


def test_a_template_of_unknown_values_is_refused(monkeypatch):
    entry_points(monkeypatch, entry_point("one", "one:PACKAGE", ProgramPackage("one", {"ONE": "{arch}"})))
    with pytest.raises(ManifestError, match=r"ONE is .*, expected text with .target"):
        target_environment("sm_90a", 132)


def test_a_cache_that_was_read_too_early_is_named():
    module = ModuleType("quack.cache")
    module.CACHE_ENABLED = True
    assert caches_left_on({"quack.cache": module}) == ["quack.cache:CACHE_ENABLED"]
    module.CACHE_ENABLED = False
    assert caches_left_on({"quack.cache": module}) == []
    assert caches_left_on({}) == []


def test_a_cache_object_that_was_made_too_early_is_named():
    name = "sglang.kernels.ops.attention.kda_decode_mtp"
    module = ModuleType(name)
    module._DSPARK_COMPILED = SimpleNamespace(_cache_path_source=lambda: "/cache")
    assert caches_left_on({name: module}) == [f"{name}:_DSPARK_COMPILED._cache_path_source"]
    module._DSPARK_COMPILED = SimpleNamespace(cache={})
    assert caches_left_on({name: module}) == []
