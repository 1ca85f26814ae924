"""Device profiles: complete, positive, and honest about where they come from."""

from __future__ import annotations

import pytest

from cutlass_aot.errors import ManifestError
from cutlass_aot.generators.device_profiles import (
    CLUSTER_SIZES,
    DeviceProfile,
    builtin_profiles,
    load_profile,
    profile_for,
)
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import decode, encode


def test_the_promised_profiles_are_there():
    assert set(builtin_profiles()) == {"b200", "gb10", "gb300", "h100", "h200", "rubin", "thor"}


@pytest.mark.parametrize("name", builtin_profiles())
def test_a_profile_is_possible(name):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.source.startswith("derived") is not profile.measured
    for size in profile.max_active_clusters:
        assert 1 <= profile.active_clusters(size) <= profile.sm_count // size
    assert from_plain(DeviceProfile, decode(encode(to_plain(profile)), "it"), "it") == profile


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_an_h100_and_an_h200_are_as_measured_and_so_have_the_same_kernels(name):
    profile = load_profile(name)
    assert profile.measured
    assert profile.sm_count == 132
    assert dict(profile.max_active_clusters) == {1: 132, 2: 66, 4: 30, 8: 15, 16: 7}


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("sm_80", "b200"), ("sm_90a", "h100"), ("sm_100a", "b200"), ("sm_100f", "b200"),
        ("sm_103a", "gb300"), ("sm_103f", "gb300"), ("sm_107a", "rubin"), ("sm_110a", "thor"),
        ("sm_120a", "b200"), ("sm_121a", "gb10"),
    ],
)  # fmt: skip
def test_the_profile_of_a_target(target: str, name: str) -> None:
    assert profile_for(target).name == name


def test_clusters_that_do_not_fit_have_no_number() -> None:
    thor = load_profile("thor")
    assert tuple(thor.max_active_clusters) == CLUSTER_SIZES[:4]
    with pytest.raises(
        ManifestError,
        match=r"no max_active_clusters for clusters of 16 .*it has 1, 2, 4, 8.*do not fit",
    ):
        thor.active_clusters(16)


GOOD = """
name = "x"
gpu = "X"
compute_capability = "9.0"
sm_count = 10
measured = false
source = "derived: for a test"
[max_active_clusters]
1 = 10
2 = 5
4 = 2
8 = 1
16 = 1
"""


def test_a_profile_of_ones_own(tmp_path):
    (tmp_path / "x.toml").write_text(GOOD)
    assert load_profile("x.toml", tmp_path).active_clusters(4) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("16 = 1", "16 = 0", r"max_active_clusters.16 is 0.*zero has made kernels hang"),
        ("8 = 1", "", "needs a value for each of the cluster sizes"),
        ("sm_count = 10", "sm_count = 0", "sm_count is 0"),
        ("sm_count = 10", "", r"missing \['sm_count'\]"),
        ("sm_count = 10", "sm_count = true", "sm_count is True"),
        ('gpu = "X"', 'gpu = "X"\ncolour = 1', r"unknown \['colour'\]"),
        ('"9.0"', '"90"', "compute_capability"),
        ("measured = false", 'measured = "no"', "measured is true or false"),
    ],
)
def test_a_bad_profile_is_named(tmp_path, old, new, message):
    (tmp_path / "x.toml").write_text(GOOD.replace(old, new))
    with pytest.raises(ManifestError, match=message):
        load_profile("x.toml", tmp_path)


def test_an_unknown_profile_is_named():
    with pytest.raises(
        ManifestError, match=r"unknown device profile 'b100': expected one of b200, gb10, gb300, h100"
    ):
        load_profile("b100")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("H200", "; did you mean 'h200'?"),
        ("NVIDIA H200", "; did you mean 'h200'?"),
        ("b20", "; did you mean 'b200'?"),
        ("H100", "; did you mean 'h100'?"),
        ("GH200", "; h100 and h200 have its compute capability, and may be taken for it"),
        ("GB200", "; b200 has its compute capability, and may be taken for it"),
        ("A100", ""),
        ("xyz", ""),
    ],
)
def test_another_name_is_refused_with_the_profile_that_may_be_meant(name, advice):
    with pytest.raises(ManifestError) as caught:
        load_profile(name)
    assert str(caught.value) == (
        f"bundle.device: unknown device profile {name!r}: expected one of b200, gb10, gb300, h100, h200, "
        f"rubin, thor, or the path of a .toml file{advice}"
    )
