"""Compatibility: each refusal says what was found and what is needed, versions compare as versions.

A table of whole machines is in test_machines.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.doctor.dependencies import satisfies
from cutlass_aot.doctor.warnings import warnings
from cutlass_aot.manifest.toml import load_toml
from cutlass_aot.runtime.machine.compatibility import (
    ANYTHING,
    MINIMUM_PYTHON,
    Driver,
    Gpu,
    Machine,
    Requirements,
    decide,
    driver_cuda,
    runnable_targets,
)
from cutlass_aot.schema.bundles.catalog import VersionRequirements
from cutlass_aot.schema.drivers import (
    COMPUTE_CAPABILITIES,
    FIRST_DRIVERS,
    compute_capability_of,
    cuda_of_driver,
    first_driver,
)
from cutlass_aot.schema.targets import HOSTS, KNOWN_TARGETS, Target, minimum_cuda
from cutlass_aot.schema.versions import release
from tests.support.paths import REPOSITORY

GOOD = Machine("x86_64", "glibc 2.36", "0.1.15", driver=Driver((13, 0)), gpus=(Gpu("NVIDIA H200", (9, 0)),))
HOPPER = Requirements(("sm_90a",), ("x86_64",), VersionRequirements("12.0", "0.1.15", "2.28"))


def needing(**changes: str) -> Requirements:
    return HOPPER._replace(versions=HOPPER.versions._replace(**changes))


def test_nothing_wrong() -> None:
    answer = decide(GOOD, HOPPER)
    assert answer.accepted
    assert answer.why == ""
    assert warnings(GOOD) == []
    assert answer.gpus[0].target == "sm_90a"


def test_where_no_gpu_was_looked_for_none_is_asked_for() -> None:
    answer = decide(GOOD._replace(gpus=None, driver=None), HOPPER)
    assert answer.accepted
    assert answer.gpus == ()


@pytest.mark.parametrize(
    ("needed", "installed", "accepted"),
    [
        ("0.1.15", "0.1.15", True),
        ("0.1.15", "0.1.15.post2", True),
        ("0.1.15.post2", "0.1.15", True),
        ("0.1.15", "0.1.15+local", True),
        ("0.1.15", "0.1.16", True),
        ("0.1.15", "0.1.16.dev1", True),
        ("0.1.9", "0.1.15", True),
        ("0.1.15", "0.1.9", False),
        ("0.1.15", "0.1.2", False),
        ("0.1.15", "0.2.0", False),
        ("0.1.15", "1.1.15", False),
        ("0.1.15", None, False),
        ("0.1.15", "unknown", False),
        ("0.1.15", "0.1.15 of our own", False),
        ("0.1.15", "0.1.15rc1", False),
        ("0.1.15", "0.1.15.dev1", False),
        ("0.1.15", "0.2.0rc1", False),
        ("0.1.15rc1", "0.1.15.dev1", False),
        ("0.1.15rc1", "0.1.15rc1", True),
        ("0.1.15rc1", "0.1.15", True),
    ],
)
def test_tvm_ffi(needed: str, installed: str | None, accepted: bool) -> None:
    answer = decide(GOOD._replace(tvm_ffi=installed), needing(tvm_ffi=needed))
    assert answer.accepted is accepted
    if not accepted:
        (reason,) = answer.reasons
        assert reason.about == "tvm_ffi"
        assert f"the bundle needs 0.1.x from {needed} on" in reason.problem
        assert reason.advice == f'pip install "apache-tvm-ffi>={needed},<0.2"'


@pytest.mark.parametrize(
    "needed", ["0.1.15.post2", "0.1.15.post2+ours", "0.1.15.post2.dev1", "0.1.15 of ours"]
)
def test_the_text_and_the_advice_are_the_rule(needed: str) -> None:
    specifiers = pytest.importorskip("packaging.specifiers")
    for installed in (
        "0.1.9", "0.1.14.post9", "0.1.15.dev1", "0.1.15a1", "0.1.15rc1", "0.1.15", "0.1.15+ours",
        "0.1.15.post1", "0.1.15.post2", "0.1.16.dev1", "0.1.16", "0.1.100", "0.2.0", "0.2.0.dev1", "1.1.15",
    ):  # fmt: skip
        answer = decide(GOOD._replace(tvm_ffi=installed), needing(tvm_ffi=needed))
        advised = specifiers.SpecifierSet(">=0.1.15,<0.2")
        assert answer.accepted is advised.contains(installed, prereleases=True), installed
        if not answer.accepted:
            assert str(answer.reasons[0]) == (
                f"apache-tvm-ffi {installed} is installed, the bundle needs 0.1.x from 0.1.15 on: "
                'pip install "apache-tvm-ffi>=0.1.15,<0.2"'
            )


@pytest.mark.parametrize(
    ("installed", "accepted"),
    [
        ("glibc 2.28", True),
        ("glibc 2.36", True),
        ("glibc 2.9", False),
        ("glibc 2.17", False),
        ("glibc 3.0", True),
        (None, False),
        ("musl", False),
        ("musl 1.2.5", False),
        ("glibc", False),
        ("glibc x", False),
        ("2.36", False),
    ],
)
def test_the_c_library(installed: str | None, accepted: bool) -> None:
    answer = decide(GOOD._replace(libc=installed), HOPPER)
    assert answer.accepted is accepted
    assert [reason.about for reason in answer.reasons] == ([] if accepted else ["libc"])


@pytest.mark.parametrize(
    ("target", "needed", "driver", "accepted"),
    [
        ("sm_90a", "12.0", (13, 0), True),
        ("sm_90a", "12.0", (12, 0), True),
        ("sm_90a", "12.0", (11, 8), False),
        ("sm_90a", "13.10", (13, 2), False),
        ("sm_90a", "13.2", (13, 10), True),
        ("sm_100a", "12.0", (12, 4), False),
        ("sm_100a", "12.0", (12, 8), True),
        ("sm_103a", "12.0", (12, 8), False),
        ("sm_103a", "12.0", (12, 9), True),
        ("sm_80", "12.0", (11, 8), False),
        ("sm_80", "11.0", (11, 8), True),
    ],
)
def test_the_driver(target: str, needed: str, driver: tuple[int, int], accepted: bool) -> None:
    parsed = Target.parse(target)
    gpus = (Gpu("GPU 0", (parsed.major, parsed.minor)),)
    answer = decide(
        GOOD._replace(driver=Driver(driver), gpus=gpus),
        needing(cuda_driver=needed)._replace(targets=(target,)),
    )
    assert answer.accepted is accepted
    if not accepted:
        assert f"the driver supports CUDA {driver[0]}.{driver[1]}" in answer.why
        assert "upgrade the GPU driver" in answer.why


def test_an_upgrade_that_is_advised_is_enough() -> None:
    machine = GOOD._replace(driver=Driver((11, 4)), gpus=(Gpu("NVIDIA GB300"), Gpu("NVIDIA H200")))
    expected = HOPPER._replace(targets=("sm_103a", "sm_90a"))
    answer = decide(machine, expected)
    assert [str(reason).rpartition(": ")[2] for reason in answer.reasons] == [
        "upgrade the GPU driver, to 575.51.03 or newer"
    ]
    assert decide(machine._replace(driver=Driver(release="575.51.03")), expected).why == ""


def test_of_a_cuda_version_newer_than_the_table_no_release_is_made_up() -> None:
    answer = decide(GOOD, needing(cuda_driver="99.0"))
    assert answer.reasons[0].advice == "upgrade the GPU driver"


def test_what_the_driver_says_goes_before_its_release() -> None:
    assert driver_cuda(Driver((12, 4), "580.126.09")) == (12, 4)
    assert driver_cuda(Driver(release="580.126.09")) == (13, 0)
    assert driver_cuda(Driver(release="not a release")) is None
    assert driver_cuda(Driver()) is None
    assert driver_cuda(None) is None


@pytest.mark.parametrize(
    ("found", "cuda"),
    [
        ("450.36.06", None), ("450.51.05", (11, 0)), ("470.256.02", (11, 4)), ("525.60.13", (12, 0)),
        ("535.309.01", (12, 2)), ("550.54.14", (12, 4)), ("570.26", (12, 8)), ("570.9", (12, 6)),
        ("580.9", (12, 9)), ("580.65.06", (13, 0)), ("580.126.09", (13, 0)), ("580.159", (13, 0)),
        ("590.44.01", (13, 1)), ("610.43.02", (13, 3)), ("615.36", (13, 4)), ("700.1", (13, 4)),
    ],
)  # fmt: skip
def test_drivers_by_their_release(found: str, cuda: tuple[int, int] | None) -> None:
    assert cuda_of_driver(found) == cuda


def test_the_table_of_drivers_is_in_order() -> None:
    assert list(FIRST_DRIVERS) == sorted(FIRST_DRIVERS)
    releases = [release(first) for first in FIRST_DRIVERS.values()]
    assert releases == sorted(set(releases))
    for cuda, first in FIRST_DRIVERS.items():
        assert cuda_of_driver(first) == cuda
        assert first_driver(cuda) == first
    # There was no toolkit 12.7: what needs it is served by 12.8.
    assert first_driver((12, 7)) == FIRST_DRIVERS[12, 8]


def test_every_target_has_a_driver() -> None:
    for name in KNOWN_TARGETS:
        assert minimum_cuda(Target.parse(name)) in FIRST_DRIVERS


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA B200", (10, 0)),
        ("NVIDIA GB200", (10, 0)),
        ("NVIDIA B300 SXM6 AC", (10, 3)),
        ("NVIDIA GB300", (10, 3)),
        ("NVIDIA H100 80GB HBM3", (9, 0)),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9, 0)),
        ("NVIDIA H200", (9, 0)),
        ("NVIDIA GH200 480GB", (9, 0)),
        ("NVIDIA A100-SXM4-80GB", (8, 0)),
        ("NVIDIA A10", (8, 6)),
        ("NVIDIA A10G", (8, 6)),
        ("NVIDIA L4", (8, 9)),
        ("NVIDIA L40S", (8, 9)),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9)),
        ("NVIDIA GeForce RTX 5090", (12, 0)),
        ("NVIDIA Thor", (11, 0)),
        ("geforce rtx 4090", (8, 9)),
        ("NVIDIA A1000", None),
        ("A", None),
        ("", None),
    ],
)
def test_models(name: str, capability: tuple[int, int] | None) -> None:
    assert compute_capability_of(name) == capability


def test_every_model_is_found_by_its_own_name() -> None:
    for name, capability in COMPUTE_CAPABILITIES.items():
        assert compute_capability_of(f"NVIDIA {name}") == capability


def test_targets_that_run_exact_first() -> None:
    targets = ["sm_80", "sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_86"]
    assert runnable_targets(targets, (9, 0)) == ["sm_90a"]
    assert runnable_targets(targets, (10, 0)) == ["sm_100a", "sm_100f"]
    assert runnable_targets(targets, (10, 3)) == ["sm_103a", "sm_103f", "sm_100f"]
    assert runnable_targets(targets, (8, 9)) == ["sm_86", "sm_80"]
    assert runnable_targets(targets, (12, 0)) == []
    assert runnable_targets(["sm_80", "of a later release"], (8, 0)) == ["sm_80"]


def test_no_target_names_the_gpu_the_bundle_and_the_way_out() -> None:
    answer = decide(
        GOOD._replace(gpus=(Gpu("GPU 0", (8, 6)),)), HOPPER._replace(targets=("sm_90a", "sm_100a"))
    )
    assert "GPU 0 has compute capability 8.6" in answer.why
    assert "sm_90a, sm_100a" in answer.why
    assert "such as sm_86" in answer.why


def test_what_a_machine_is_asked_of_all_there_is_agrees_with_the_project() -> None:
    from cutlass_aot.builder.native import CUDA_DRIVER
    from cutlass_aot.bundle.glibc import OLDEST

    project = load_toml(REPOSITORY / "pyproject.toml")["project"]
    assert project["requires-python"] == f">={MINIMUM_PYTHON}"
    (needed,) = [text for text in project["dependencies"] if text.startswith("apache-tvm-ffi")]
    assert needed.removeprefix("apache-tvm-ffi").startswith(f">={ANYTHING.versions.tvm_ffi},")
    assert (ANYTHING.versions.glibc, ANYTHING.versions.cuda_driver) == (
        ".".join(map(str, OLDEST)),
        CUDA_DRIVER,
    )
    assert ANYTHING.targets == KNOWN_TARGETS
    assert ANYTHING.hosts == tuple(HOSTS)


# -- properties -------------------------------------------------------------------------------------------

numbers = st.lists(st.integers(0, 999), min_size=1, max_size=4).map(tuple)
capabilities = st.sampled_from(sorted({*COMPUTE_CAPABILITIES.values(), (9, 1), (13, 0)}))
target_sets = st.lists(st.sampled_from([*KNOWN_TARGETS, "sm_100", "sm_120f"]), unique=True)
cudas = st.tuples(st.integers(10, 14), st.integers(0, 12))
versions = st.one_of(st.none(), st.text(max_size=12), numbers.map(lambda parts: ".".join(map(str, parts))))
machines = st.builds(
    Machine,
    host=st.sampled_from(["x86_64", "aarch64", "riscv64"]),
    libc=st.one_of(st.none(), st.just("musl"), versions.map(lambda text: f"glibc {text}")),
    tvm_ffi=versions,
    python=versions,
    torch=versions,
    torch_cuda=versions,
    driver=st.one_of(st.none(), st.builds(Driver, cuda=st.one_of(st.none(), cudas), release=versions)),
    gpus=st.one_of(
        st.none(),
        st.lists(
            st.builds(Gpu, name=st.text(max_size=20), capability=st.one_of(st.none(), capabilities)),
            max_size=3,
        ).map(tuple),
    ),
)


def dotted(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))


@given(numbers, numbers)
def test_versions_compare_as_their_numbers(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    width = max(len(left), len(right))
    padded = [parts + (0,) * (width - len(parts)) for parts in (left, right)]
    assert (release(dotted(left)) < release(dotted(right))) == (padded[0] < padded[1])
    assert (release(dotted(left)) == release(dotted(right))) == (padded[0] == padded[1])


@given(numbers, numbers)
def test_glibc_compares_as_numbers(needed: tuple[int, ...], found: tuple[int, ...]) -> None:
    answer = decide(GOOD._replace(libc=f"glibc {dotted(found)}"), needing(glibc=dotted(needed)))
    assert answer.accepted is (release(dotted(found)) >= release(dotted(needed)))


@given(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 30)), st.integers(0, 40))
def test_tvm_ffi_agrees_with_the_advice(needed: tuple[int, int, int], patch: int) -> None:
    found = dotted((*needed[:2], patch))
    answer = decide(GOOD._replace(tvm_ffi=found), needing(tvm_ffi=dotted(needed)))
    clause = f">={dotted(needed)},<{needed[0]}.{needed[1] + 1}"
    assert answer.accepted is satisfies(found, clause)


@given(numbers)
def test_a_newer_driver_supports_no_less(parts: tuple[int, ...]) -> None:
    older = cuda_of_driver(dotted(parts)) or (0, 0)
    newer = cuda_of_driver(dotted((*parts[:-1], parts[-1] + 1))) or (0, 0)
    assert newer >= older


@given(machines, target_sets)
def test_every_machine_is_answered(machine: Machine, targets: list[str]) -> None:
    expected = HOPPER._replace(targets=targets)
    answer = decide(machine, expected)
    assert decide(machine, expected) == answer
    assert all(warning and not warning.endswith(".") for warning in warnings(machine))
    assert answer.accepted or answer.why
    for gpu in answer.gpus:
        # Served, or a reason why not; what serves is one of the bundle's, and runs there.
        assert bool(gpu.targets) is not bool(gpu.reasons)
        assert set(gpu.targets) <= set(targets)
        if gpu.gpu.capability is not None:
            assert list(gpu.targets) == [
                t for t in runnable_targets(targets, gpu.gpu.capability) if t in gpu.targets
            ]


@given(machines, target_sets, cudas)
def test_a_newer_driver_refuses_nothing_that_ran(
    machine: Machine, targets: list[str], cuda: tuple[int, int]
) -> None:
    expected = HOPPER._replace(targets=targets)
    before = decide(machine._replace(driver=Driver(cuda)), expected)
    after = decide(machine._replace(driver=Driver((cuda[0] + 1, 0))), expected)
    assert after.accepted or not before.accepted
    for old, new in zip(before.gpus, after.gpus, strict=True):
        assert set(old.targets) <= set(new.targets)


@given(machines, target_sets, target_sets)
def test_more_targets_refuse_nothing_that_ran(machine: Machine, targets: list[str], more: list[str]) -> None:
    before = decide(machine, HOPPER._replace(targets=targets))
    after = decide(machine, HOPPER._replace(targets=[*targets, *more]))
    assert after.accepted or not before.accepted
