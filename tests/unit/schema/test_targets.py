"""What runs where, and versions as numbers."""

from __future__ import annotations

import pytest

from cutlass_aot.schema.drivers import COMPUTE_CAPABILITIES
from cutlass_aot.schema.targets import (
    FEATURES,
    HARDWARE,
    KNOWN_TARGETS,
    Target,
    minimum_cuda,
    target_meant,
    targets_with,
)
from cutlass_aot.schema.versions import major_minor, release

RUNS = {
    ("sm_80", (8, 0)): True,
    ("sm_80", (8, 9)): True,
    ("sm_80", (9, 0)): False,
    ("sm_89", (8, 6)): False,
    ("sm_90a", (9, 0)): True,
    ("sm_90a", (10, 0)): False,
    ("sm_100a", (10, 0)): True,
    ("sm_100a", (10, 3)): False,
    ("sm_100f", (10, 3)): True,
    ("sm_103f", (10, 0)): False,
    ("sm_103a", (10, 3)): True,
    ("sm_120a", (12, 0)): True,
    ("sm_120a", (12, 1)): False,
    ("sm_121a", (12, 1)): True,
    ("sm_121a", (12, 0)): False,
    ("sm_110a", (11, 0)): True,
    ("sm_107a", (10, 7)): True,
    ("sm_107a", (10, 3)): False,
    ("sm_100f", (10, 7)): True,
    ("sm_103f", (10, 7)): True,
    ("sm_100f", (12, 0)): False,
    # Tegra runs cubins for itself alone, and no other GPU runs those.
    ("sm_80", (8, 7)): False,
    ("sm_86", (8, 7)): False,
    ("sm_87", (8, 7)): True,
    ("sm_87", (8, 9)): False,
}


@pytest.mark.parametrize(("target", "capability"), sorted(RUNS))
def test_a_cubin_runs_on(target, capability):
    assert Target.parse(target).runs_on(capability) is RUNS[target, capability]


def test_exact_is_preferred_to_family_to_portable():
    order = sorted(
        ["sm_100", "sm_100f", "sm_103", "sm_103a", "sm_103f"],
        key=lambda name: Target.parse(name).preference((10, 3)),
    )
    assert order == ["sm_103a", "sm_103f", "sm_100f", "sm_103", "sm_100"]


@pytest.mark.parametrize("name", KNOWN_TARGETS)
def test_every_known_target_parses_and_prints(name):
    assert str(Target.parse(name)) == name
    assert minimum_cuda(Target.parse(name)) >= (11, 0)


@pytest.mark.parametrize("name", ["", "90a", "sm_", "sm_9", "sm_90b", "sm_90a ", "SM_90a", "sm_1000"])
def test_other_text_is_no_target(name):
    with pytest.raises(ValueError, match="is not a target"):
        Target.parse(name)


def test_targets_say_how_far_they_run():
    kinds = {name: Target.parse(name).kind for name in ("sm_103a", "sm_100f", "sm_80")}
    assert kinds == {"sm_103a": "architecture-specific", "sm_100f": "family", "sm_80": "portable"}


def test_newer_targets_need_newer_drivers():
    assert minimum_cuda(Target.parse("sm_100a")) == (12, 8)
    assert minimum_cuda(Target.parse("sm_103a")) == (12, 9)
    assert minimum_cuda(Target.parse("sm_100f")) == (12, 9)
    assert minimum_cuda(Target.parse("sm_110a")) == (13, 0)
    assert minimum_cuda(Target.parse("sm_107a")) == (13, 4)
    assert minimum_cuda(Target.parse("sm_121a")) == (12, 9)
    # Of one that is not in the table, the next older one's.
    assert minimum_cuda(Target.parse("sm_88")) == minimum_cuda(Target.parse("sm_86"))
    assert minimum_cuda(Target.parse("sm_75")) == (11, 0)
    assert minimum_cuda(Target.parse("sm_100")) == (12, 8)
    assert minimum_cuda(Target.parse("sm_120f")) == (12, 9)


def test_targets_are_known_by_their_features() -> None:
    assert targets_with() == KNOWN_TARGETS
    assert targets_with("wgmma") == ("sm_90a",)
    assert targets_with("tcgen05_rubin", "fp8") == ("sm_107a",)
    assert targets_with("tcgen05", "tcgen05_int8") == ("sm_100a", "sm_110a")
    assert frozenset().union(*(hardware.features for hardware in HARDWARE.values())) == FEATURES.keys()
    with pytest.raises(ValueError, match=r"unknown features \['tensor'\]: expected some of fp8, wgmma"):
        targets_with("fp8", "tensor")


def test_versions_compare_as_numbers():
    assert release("0.6.11") > release("0.6.2") > release("0.6.1")
    assert release("0.1.15.post2") == (0, 1, 15)
    assert release("13.0") == release("13")
    assert major_minor("13") == (13, 0)


@pytest.mark.parametrize("text", ["", "abc", ".1"])
def test_text_is_no_version(text):
    with pytest.raises(ValueError, match="is not a version"):
        release(text)


@pytest.mark.parametrize(
    ("found", "known", "advice"),
    [
        ("sm_90", KNOWN_TARGETS, "; did you mean 'sm_90a'?"),
        ("sm90a", KNOWN_TARGETS, "; did you mean 'sm_90a'?"),
        ("SM_90A", KNOWN_TARGETS, "; did you mean 'sm_90a'?"),
        ("9.0", KNOWN_TARGETS, "; did you mean 'sm_90a'?"),
        ("sm_100", KNOWN_TARGETS, "; did you mean 'sm_100a' or 'sm_100f'?"),
        ("sm_91a", KNOWN_TARGETS, "; did you mean 'sm_90a'?"),
        # Other GPUs: code of a target that looks alike does not run there.
        (
            "sm_120a",
            ("sm_80", "sm_90a", "sm_100a"),
            "; none of these runs on GPUs of compute capability 12.0",
        ),
        ("Thor", KNOWN_TARGETS, "; sm_110a runs on GPUs of compute capability 11.0"),
        ("sm_75", KNOWN_TARGETS, "; none of these runs on GPUs of compute capability 7.5"),
        ("sm_103a", ("sm_90a", "sm_100f"), "; sm_100f runs on GPUs of compute capability 10.3"),
        ("H200", KNOWN_TARGETS, "; sm_90a runs on GPUs of compute capability 9.0"),
        ("L40S", KNOWN_TARGETS, "; sm_80 and sm_86 and sm_89 run on GPUs of compute capability 8.9"),
        ("blackwell", KNOWN_TARGETS, ""),
        ("", KNOWN_TARGETS, ""),
        (90, KNOWN_TARGETS, ""),
    ],
)
def test_the_target_that_may_be_meant(found: object, known: tuple[str, ...], advice: str) -> None:
    assert target_meant(found, known) == advice


def test_capabilities_that_gpus_have_are_known_here() -> None:
    for major, minor in COMPUTE_CAPABILITIES.values():
        assert "compute capability" in target_meant(f"sm_{major}{minor}", ["sm_61"])
