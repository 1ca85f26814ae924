"""Declared kernels: what a declaration may be, the generator it is, and the function that a call gives."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot import Operand, policy
from cutlass_aot.builder.compile.compile import _check_answer
from cutlass_aot.builder.compile.messages import Enumerated
from cutlass_aot.builder.plan.plan import enumerations, load_sources, select
from cutlass_aot.errors import (
    CompileError,
    CorruptFile,
    DeclarationError,
    GeneratorError,
    KernelNotFound,
    ManifestError,
    MisplacedOperand,
    OperandError,
)
from cutlass_aot.generators import registry
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Generator, Problem
from cutlass_aot.generators.registry import GeneratorReference, find, import_plugin, references
from cutlass_aot.kernels.layer_norm import layer_norm
from cutlass_aot.kernels.rms_norm import fused_rms_norm, rms_norm, rms_norm_fp8
from cutlass_aot.kernels.row_designs import DESIGNS
from cutlass_aot.kernels.softmax import softmax
from cutlass_aot.manifest.model import parse_manifest
from cutlass_aot.runtime import bundle_search, declared
from cutlass_aot.runtime.machine import cuda_driver, host
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.entry_points import GENERATORS
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, RankedProblems, Ranking
from tests.support import declared_kernels
from tests.support.bundles import write_bundle
from tests.support.declared_kernels import (
    compute,
    scale_rows,
    tiled,
    tuned,
    without_parameters,
    wrong_answers,
)
from tests.support.kernels import gemm

DEVICE = load_profile("h200")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No policy, no bundles but those that a test opens, and nothing remembered."""
    monkeypatch.delenv(policy.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(policy, "_process", policy._Process())
    monkeypatch.setattr(bundle_search, "opened_bundles", lambda: list(opened))
    monkeypatch.setattr(bundle_search, "located", list)
    for made in (scale_rows, tuned, without_parameters):
        monkeypatch.setattr(made, "_functions", {})
        monkeypatch.setattr(made, "_calls", {})
    opened: list[Any] = []
    return opened


def record(n=128, fast=False, target="sm_90a") -> Kernel:
    made = DeclaredGenerator(scale_rows).kernel({"n": n, "fast": fast}, target)
    assert made is not None
    return made


# -- operands ---------------------------------------------------------------------------------------------


def test_an_operand_is_the_constraint_of_a_record():
    made = Operand("x", "bf16", ["T", 64], alignment=16, divisibility=8, compact=True).constraint()
    assert (made.extents, made.contiguous, made.divisibility, made.alignment) == (("T", 64), -1, 8, 16)
    assert made.compact
    assert not made.written
    assert not made.problem()


def test_an_operand_is_aligned_to_its_elements_unless_it_says_more():
    assert Operand("x", "f64", ("N",)).constraint().alignment == 8
    assert Operand("x", "f8e4m3", ("N",)).constraint().alignment == 1


def test_no_extents_are_a_number_by_value():
    made = Operand("eps", "f32", ()).constraint()
    assert made.is_number
    assert not made.problem()


@pytest.mark.parametrize(
    ("operand", "problem"),
    [
        (Operand("a b", "f32", ("N",)), "expected a name"),
        (Operand("x", "float", ("N",)), "unknown element type 'float'"),
        (Operand("x", "bf16", ()), "a number by value is one of f64, f32, i64, i32"),
        (Operand("x", "f32", (), written=True), "cannot be written"),
        (Operand("x", "f32", (0,)), "extent 0"),
        (Operand("x", "f32", (True,)), "extent True"),
        (Operand("x", "f32", ("*",)), "extent '*'"),
        (Operand("x", "f32", ("N",), contiguous=-2), "contiguous mode -2"),
        (Operand("x", "f32", ("N",), alignment=2), "alignment of 2 bytes"),
        (Operand("x", "f32", ("N",), alignment=12), "alignment of 12 bytes"),
        (Operand("x", "f32", ("N",), divisibility=0), "divisibility 0"),
        (Operand("x", "f32", ("N", 6), divisibility=4), "6 is not a multiple of its divisibility 4"),
        (Operand("x", "f4e2m1", ("N", 32), alignment=24), "alignment of 24 bytes"),
    ],
)
def test_an_operand_that_no_kernel_can_have_is_refused(operand, problem):
    with pytest.raises(GeneratorError, match=problem.replace("*", r"\*")):
        operand.constraint()


# -- declarations -----------------------------------------------------------------------------------------


def declare(function, name="some_kernel", **options):
    return cutlass_aot.kernel(name, **options)(function)


def takes_n(n):
    return n


def takes_a_default(n=4):
    return n


def takes_more(*n):
    return n


@pytest.mark.parametrize(
    ("function", "options", "problem"),
    [
        (takes_n, {"name": "Some"}, "the name 'Some'"),
        (takes_n, {"name": "gemm"}, "not `gemm`"),
        (takes_n, {}, r"it takes \(n\), `params` declares \(\)"),
        (takes_n, {"params": {"m": [1]}}, r"it takes \(n\), `params` declares \(m\)"),
        (takes_a_default, {"params": {"n": [1]}}, "`n` has a default value"),
        (takes_more, {"params": {"n": [1]}}, "expected parameters with names"),
        (takes_n, {"tuning": {"m": [1]}}, r"takes \(n\), `params` declares \(\) and `tuning` \(m\)"),
        (takes_n, {"params": {"n": [1]}, "tuning": {"n": [1]}}, "the same names in the same order"),
        (takes_n, {"tuning": {"n": []}}, r"tuning\['n'\]: expected a list of values, each once"),
        (takes_n, {"params": {"n": [1]}, "cost": 4}, "cost 4: expected a formula as text"),
        (takes_n, {"params": {"n": []}}, "a list of values, each once"),
        (takes_n, {"params": {"n": [1, 1]}}, "a list of values, each once"),
        (takes_n, {"params": {"n": [None]}}, "parameter n = None"),
        (takes_n, {"params": {"n": ["silu/gelu"]}}, "parameter n = 'silu/gelu': expected text of letters"),
        (takes_n, {"params": {"n": ["a b"]}}, "parameter n = 'a b'"),
        (takes_n, {"params": {"n": ["*"]}}, r"parameter n = '\*'"),
        (takes_n, {"params": {"n": [""]}}, "parameter n = ''"),
        (takes_n, {"params": {"n": ["line\n"]}}, "parameter n = 'line"),
        (takes_n, {"params": {"n": ["x" * 65]}}, "at most 64"),
        (takes_n, {"params": {"n": [float("nan")]}}, "parameter n = nan"),
        (takes_n, {"params": {"n": [(1, True)]}}, r"parameter n = \(1, True\)"),
        (takes_n, {"params": {"n": list(range(5000))}}, "5000 combinations"),
        (takes_n, {"params": {"n": [1]}, "targets": ["sm_90"]}, "unknown target 'sm_90'"),
        (takes_n, {"params": {"n": [1]}, "targets": []}, "no targets"),
        (takes_n, {"params": {"n": [1]}, "targets": "sm_90a"}, "`targets`: expected a list of names"),
        (
            takes_n,
            {"params": {"n": [1]}, "available": ["sm_90a"]},
            r"available \['sm_90a'\]: expected a function",
        ),
        (takes_n, {"params": {"n": [1]}, "modules": "axpy"}, "`modules`: expected a list of names"),
        (takes_n, {"params": {"n": [1]}, "distributions": [3]}, "`distributions`: expected a list of names"),
        (takes_n, {"params": ["n"]}, "`params`: expected lists of values by names"),
        (takes_n, {"params": {"n": 4}}, r"params\['n'\]: expected a list of values, got 4"),
        (takes_n, {"tuning": {"n": "fast"}}, r"tuning\['n'\]: expected a list of values, got 'fast'"),
        (lambda n: n, {"params": {"n": [1]}}, "at the top level of a module"),
        (print, {}, "at the top level of a module"),
    ],
)
def test_a_declaration_that_a_build_could_not_repeat_is_refused(function, options, problem):
    before = dict(declared.declared_kernels())
    with pytest.raises(
        DeclarationError,
        match=rf"^kernel '\w+' \({__file__}:{declare.__code__.co_firstlineno + 1}\): .*{problem}",
    ):
        declare(function, **options)
    assert declared.declared_kernels() == before


def test_a_decorator_without_a_name_is_refused():
    with pytest.raises(
        DeclarationError, match=rf"^a kernel \({__file__}:\d+\): expected its name as text, .*; write @"
    ):

        @cutlass_aot.kernel
        def nameless():
            return None


def test_a_closure_is_refused():
    factor = 2

    def scaled(n):
        return factor * n

    scaled.__qualname__ = "scaled"
    with pytest.raises(GeneratorError, match="it takes factor from a closure: declare them under `params`"):
        declare(scaled, params={"n": [1]})


def test_a_name_is_given_once():
    taken = (
        r"its name is taken by tests.support.declared_kernels:scale_rows \(.*declared_kernels.py:16\): give"
    )
    with pytest.raises(DeclarationError, match=taken):
        declare(takes_n, name="scale_rows", params={"n": [1]})


def test_true_and_one_are_two_values():
    made = declare(takes_n, name="both", params={"n": [1, True]})
    del declared._declared["both"]
    assert [type(values["n"]) for values in made.combinations()] == [int, bool]


# -- the generator ----------------------------------------------------------------------------------------


def test_a_declared_kernel_is_a_generator_by_its_name():
    reference = references()["scale_rows"]
    assert reference == GeneratorReference("scale_rows", "tests.support.declared_kernels:scale_rows")
    found = reference.load()
    assert isinstance(found, Generator)
    assert found.operations == ("scale_rows",)
    assert "tests.support.declared_kernels" in found.modules
    assert found.design == {"n": "parameter: 64, 128", "fast": "parameter: False, True"}
    assert found.targets("scale_rows") == ("sm_90a", "sm_100a")
    assert found.targets("gemm") == ()


def test_it_enumerates_a_record_for_each_combination_that_there_is():
    found = list(DeclaredGenerator(scale_rows).enumerate(Problem("scale_rows", (), "", ""), "sm_90a", DEVICE))
    assert [dict(kernel.parameters) for kernel in found] == [
        {"n": 64, "fast": False},
        {"n": 128, "fast": False},
        {"n": 128, "fast": True},
    ]
    assert len({kernel.group for kernel in found}) == 3
    first = found[0]
    assert (first.operation, first.generator, first.design) == ("scale_rows", "scale_rows", ())
    assert [operand.name for operand in first.operands] == ["x", "out", "factor"]
    assert from_plain(Kernel, to_plain(first), "a kernel record") == first


def test_a_combination_that_a_target_has_not_is_left_out(monkeypatch):
    called = []

    def available(target, values):
        called.append((target, dict(values)))
        return target != "sm_90a" or values["n"] == 64

    monkeypatch.setattr(scale_rows, "available", available)
    generator = DeclaredGenerator(scale_rows)
    for target, expected in (("sm_90a", [64]), ("sm_100a", [64, 128, 128])):
        found = generator.enumerate(Problem("scale_rows", (), "", ""), target, DEVICE)
        assert [dict(kernel.parameters)["n"] for kernel in found] == expected
    assert called[0] == ("sm_90a", {"n": 64, "fast": False})


@pytest.mark.parametrize("declared_kernel", [rms_norm, fused_rms_norm, rms_norm_fp8, layer_norm, softmax])
def test_designs_with_clusters_are_of_targets_that_have_them(declared_kernel):
    designs = [dict(zip(DESIGNS, pair, strict=True)) for pair in product(*declared_kernel.tuning.values())]
    known = [design for design in designs if declared_kernel.available("sm_90a", design)]
    # Each pair of numbers belongs to a design, in registers or in shared memory.
    assert {design["row"] for design in known} == {*declared_kernel.tuning["row"]}
    assert {design["staged"] for design in known} == {False, True}
    for target, most in (("sm_80", 512), ("sm_89", 512), ("sm_120a", 4096), ("sm_121a", 4096)):
        found = [design for design in designs if declared_kernel.available(target, design)]
        assert found == [d for d in known if d["row"][0] <= most and not d["staged"]]
        assert found[0] == {"row": (256, 4), "staged": False}
    for target in ("sm_100f", "sm_103a", "sm_110a"):
        assert [design for design in designs if declared_kernel.available(target, design)] == known


def test_it_answers_problems_that_describe_its_operands_and_no_others():
    generator = DeclaredGenerator(scale_rows)
    mine = Problem("scale_rows", ("bf16", "bf16", "f32"), "tts", "")
    assert len(list(generator.enumerate(mine, "sm_90a", DEVICE))) == 3
    for other in (
        Problem("scale_rows", ("f16", "bf16", "f32"), "tts", ""),
        Problem("gemm", (), "", ""),
    ):
        assert not list(generator.enumerate(other, "sm_90a", DEVICE))
    assert not list(generator.enumerate(mine, "sm_80", DEVICE))


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("text", "returned str: expected"),
        ("unknown_type", "operand `out`: unknown element type 'bf17'.* did you mean 'bf16'"),
        ("no_operands", "operands none"),
        ("twice", "operands out, out"),
        ("unwritten", "one that is written"),
        ("not_operands", "a list of cutlass_aot.Operand"),
        ("a_number", r"a tuple of values .* got int 4: a tuple of one value is written \(value,\)"),
        ("a_word", "a tuple of values .* got str 'fast'"),
        (
            "few",
            "given the operands out, then 1 value to compile in, .* missing a required argument: 'stream'",
        ),
        (
            "many",
            "given the operands x, out, then 2 values .* too many positional arguments; declare what it",
        ),
    ],
)
def test_what_a_function_returns_is_looked_at(how, problem):
    place = rf"{declared_kernels.__file__}:\d+"
    with pytest.raises(
        DeclarationError, match=rf"^kernel wrong_answers\(how='{how}'\) \({place}\): .*{problem}"
    ):
        DeclaredGenerator(wrong_answers).kernel({"how": how}, "sm_90a")


def test_a_record_that_the_function_no_longer_describes_is_not_compiled(monkeypatch):
    kernel = record()

    def changed(**_):
        return compute, [Operand("out", "f32", ("N",), written=True)]

    monkeypatch.setattr(scale_rows, "function", changed)
    # The DSL, which is not needed to see that.
    monkeypatch.setitem(sys.modules, "cutlass_aot.generators.dsl", None)
    monkeypatch.setattr("cutlass_aot.generators.dsl", None, raising=False)
    with pytest.raises(CompileError, match="it depends on something that is not a parameter"):
        DeclaredGenerator(scale_rows).compile(kernel)


def test_a_plugin_may_declare_kernels_alone():
    import_plugin("tests.support.declared_kernels")
    assert find("scale_rows").location == "tests.support.declared_kernels:scale_rows"


def test_an_entry_point_may_reach_a_kernel_by_another_module(monkeypatch):
    """A package that exports a kernel at its top names that in its entry point."""

    def entry_point(name):
        point = EntryPoint(name, "a_package:exported", GENERATORS)
        monkeypatch.setattr(registry.metadata, "entry_points", lambda group: [point])

    module = ModuleType("a_package")
    module.exported = scale_rows
    monkeypatch.setitem(sys.modules, "a_package", module)
    entry_point("scale_rows")
    assert references()["scale_rows"] == GeneratorReference("scale_rows", "a_package:exported")
    assert find("scale_rows").load().name == "scale_rows"
    entry_point("tiled")
    with pytest.raises(GeneratorError, match=r"'tiled' of .*:tiled is taken by a_package:exported"):
        references()


def test_a_plugin_that_declares_nothing_is_refused():
    with pytest.raises(GeneratorError, match=r"or a function with cutlass_aot\.kernel"):
        import_plugin("tests.support.kernels")


# -- manifests --------------------------------------------------------------------------------------------

MANIFEST = """
plugins = ["tests.support.declared_kernels"]
[bundle]
name = "test"
targets = ["sm_90a"]
device = "h200"
[[kernels]]
generator = "scale_rows"
operation = "scale_rows"
"""


def chosen(extra: str) -> list[dict[str, Any]]:
    parsed = parse_manifest((MANIFEST + extra).encode(), Path("m.toml"))
    sources = load_sources(parsed)
    answers = []
    for question in enumerations(parsed, sources):
        generator = sources.instances["scale_rows"]
        kernels = tuple(generator.enumerate(question.problem, question.target, DEVICE))
        _check_answer(question, Enumerated(kernels, tuple(generator.design)))
        answers.append((question, kernels))
    return [dict(kernel.parameters) for kernel in select(parsed, answers, "4.8.1").kernels]


def test_a_table_needs_no_operands_and_filters_on_parameters():
    assert len(chosen("")) == 3
    assert chosen("n = 128\nfast = true") == [{"n": 128, "fast": True}]


def test_a_table_that_filters_on_nothing_declared_is_refused():
    with pytest.raises(ManifestError, match=r"unknown key 'm'.*the design of 'scale_rows': n, fast"):
        chosen("m = 128")
    with pytest.raises(ManifestError, match=r"n = .4096. matches nothing; what is left has 64, 128"):
        chosen("n = 4096")


def test_a_parameter_may_have_the_short_name_of_a_designs(tmp_path):
    generator = DeclaredGenerator(tiled)
    text = MANIFEST.replace("scale_rows", "tiled") + "tile = 64\nstages = [3]"
    parsed = parse_manifest(text.encode(), Path("m.toml"))
    (question,) = enumerations(parsed, load_sources(parsed))
    kernels = list(generator.enumerate(question.problem, question.target, DEVICE))
    (kernel,) = select(parsed, [(question, kernels)], "4.8.1").kernels
    assert dict(kernel.parameters) == {"tile": 64, "stages": 3}
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", [*kernels, gemm()]))
    assert [handle.kernel for handle in bundle.kernels(tile="64", stages="3")] == [kernel]
    # A GEMM's is another name for its tile_shape.
    assert [handle.kernel for handle in bundle.kernels(tile="128x*")] == [gemm()]


@pytest.mark.parametrize("name", ["scale", "out", "targets", "group", "name"])
def test_a_parameter_with_the_name_of_a_manifests_key_is_refused(name):
    made = declare(vars(declared_kernels)[f"takes_{name}"], name=f"takes_{name}", params={name: [1]})
    del declared._declared[made.name]
    with pytest.raises(GeneratorError, match=f"parameter '{name}' has the name of a key"):
        DeclaredGenerator(made)


# -- the prebuilt function --------------------------------------------------------------------------------


def test_it_finds_the_kernel_in_an_open_bundle(tmp_path, fresh):
    kernels = [record(), record(target="sm_100a"), record(fast=True), record(n=64), gemm()]
    fresh.append(cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels)))
    found = scale_rows(n=128, fast=False)
    assert [kernel.kernel for kernel in found.kernels()] == [kernels[1], kernels[0]]
    assert repr(found) == "<PrebuiltFunction scale_rows(n=128, fast=False)>"


def test_equal_parameters_give_the_same_function(tmp_path, fresh):
    fresh.append(cutlass_aot.open(write_bundle(tmp_path / "bundle", [record(), record(fast=True)])))
    assert scale_rows(n=128, fast=False) is scale_rows(128, False)
    assert scale_rows(n=128, fast=False) is not scale_rows(n=128, fast=True)
    assert scale_rows(fast=False, n=128) is scale_rows(128, False)
    with pytest.raises(KernelNotFound):
        scale_rows(128, 0)


def test_the_function_of_the_program_is_not_called(tmp_path, fresh):
    fresh.append(cutlass_aot.open(write_bundle(tmp_path / "bundle", [record()])))
    before = len(declared_kernels.CALLS)
    scale_rows(n=128, fast=False)
    assert len(declared_kernels.CALLS) == before


def test_the_bundle_opened_last_comes_first(tmp_path, fresh):
    first, last = (write_bundle(tmp_path / name, [record()]) for name in ("first", "last"))
    fresh[:] = [cutlass_aot.open(last), cutlass_aot.open(first)]
    places = [kernel._group._root for kernel in scale_rows(n=128, fast=False).kernels()]
    assert places == [last, first]


def test_an_installed_bundle_is_opened_where_no_open_one_has_it(tmp_path, fresh, monkeypatch):
    from cutlass_aot.runtime.search_path import InstalledBundle

    own, wheel, broken = (tmp_path / name for name in ("own", "wheel", "broken"))
    fresh.append(cutlass_aot.open(write_bundle(own, [record()])))
    write_bundle(wheel, [record(), record(n=64)], name="wheel", version="1")
    installed = [InstalledBundle(path.name, "1", "d", "p", path) for path in (wheel, broken)]
    monkeypatch.setattr(bundle_search, "located", lambda: installed)
    monkeypatch.setattr(bundle_search, "_installed", {})
    # What comes first has it, so that nothing is opened.
    scale_rows(n=128, fast=False)
    assert not bundle_search._installed
    scale_rows(n=64, fast=False)
    assert [bundle.path for bundle in bundle_search._installed.values()] == [wheel]
    # One that cannot be opened keeps nobody from the next, and is named where none has it.
    installed.insert(0, installed.pop())
    bundle_search._installed.clear()
    scale_rows.__dict__["_functions"].clear()
    scale_rows.__dict__["_calls"].clear()
    scale_rows(n=64, fast=False)
    with pytest.raises(KernelNotFound, match=r"or choose policy jit; installed bundle broken 1 cannot be op"):
        scale_rows(n=128, fast=True)


def test_policy_jit_is_not_advised_where_the_dsl_is_not_installed(fresh, monkeypatch):
    for versions, advised in (({"nvidia-cutlass-dsl": "4.8.1"}, True), ({}, False)):
        monkeypatch.setattr(host, "installed_version", versions.get)
        with pytest.raises(KernelNotFound, match=r"open one that has it with cutlass_aot\.open") as raised:
            scale_rows(n=128, fast=True)
        assert ("policy jit" in str(raised.value)) is advised


def test_installed_bundles_come_in_the_order_of_open_installed(tmp_path, fresh, monkeypatch):
    """The place on the search path, then the newest; the second time as the first."""
    from cutlass_aot.runtime.bundle import opened_bundles
    from cutlass_aot.runtime.search_path import located

    monkeypatch.setattr(bundle_search, "located", located)
    monkeypatch.setattr(bundle_search, "opened_bundles", opened_bundles)
    monkeypatch.setattr(bundle_search, "_installed", {})
    own = cutlass_aot.open(write_bundle(tmp_path / "own", [record()], name="own"))
    for folder, name, version in (
        ("first/z", "z", "0.0.1"),
        ("second/0", "a", "0.9.0"),
        ("second/1", "a", "0.10.0"),
        ("second/2", "b", "0.10.0"),
    ):
        write_bundle(tmp_path / folder, [record()], name=name, version=version)
    monkeypatch.setenv("CUTLASS_AOT_BUNDLE_PATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    search = declared.BundleSearch()
    for _ in range(2):
        assert own in list(search)
        assert search.seen[-4:] == ["z 0.0.1", "a 0.10.0", "b 0.10.0", "a 0.9.0"]
        assert search.problems == []
    # One that the program opened comes before all of these, and once.
    newer = cutlass_aot.open(tmp_path / "second" / "0")
    assert next(iter(search)) is newer
    list(search)
    assert search.seen[-3:] == ["z 0.0.1", "a 0.10.0", "b 0.10.0"]


def test_a_listing_filters_by_parameters(tmp_path):
    kernels = [record(), record(fast=True), record(n=64), gemm()]
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels))
    assert [handle.kernel for handle in bundle.kernels(n="128", fast="true")] == [kernels[1]]
    assert {handle.kernel for handle in bundle.kernels(operation="scale_rows", fast="false")} == {
        kernels[0],
        kernels[2],
    }
    with pytest.raises(cutlass_aot.ParameterError, match=r"of the design and the parameters: .*fast, n"):
        bundle.kernels(operation="scale_rows", m="1")


def test_open_bundles_are_known_until_nobody_holds_them(tmp_path):
    from cutlass_aot.runtime.bundle import opened_bundles

    paths = [write_bundle(tmp_path / name, [record()]) for name in ("a", "b")]
    held = [cutlass_aot.open(path) for path in paths]
    assert [bundle.path for bundle in opened_bundles()][:2] == paths[::-1]
    del held
    assert not {bundle.path for bundle in opened_bundles()} & set(paths)


@pytest.mark.parametrize("name", ["required", "warn"])
def test_parameters_that_no_bundle_has_are_a_miss_at_once(tmp_path, fresh, name):
    fresh.append(cutlass_aot.open(write_bundle(tmp_path / "bundle", [record(n=64)])))
    with policy.use(name), pytest.raises(KernelNotFound) as caught:
        scale_rows(n=128, fast=False)
    assert "no kernel scale_rows(n=128, fast=False) for any GPU" in str(caught.value)
    assert "(small 0.1.0)" in str(caught.value)
    assert policy.misses() == {"scale_rows(n=128, fast=False) on any GPU": 1}


def test_a_miss_says_with_which_parameters_there_are_kernels(tmp_path, fresh):
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", [record(n=64), gemm()]))
    fresh.append(bundle)
    with policy.use("required"):
        with pytest.raises(KernelNotFound, match=r"it with parameters=\{'fast': False, 'n': 64\}; "):
            scale_rows(n=128, fast=False)
        with pytest.raises(KernelNotFound) as caught:
            scale_rows(n=96, fast=False)
    assert "n is 96, declared with 64, 128: a build makes kernels of declared values alone" in str(
        caught.value
    )


def test_a_query_that_names_no_parameters_is_told_which_there_are(tmp_path):
    kernels = [record(n=64), record(n=128), record(n=128, fast=True), gemm()]
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels))
    rows = cutlass_aot.describe((7, 128), "bf16")
    with pytest.raises(KernelNotFound) as caught:
        bundle.choose(rows, rows, 0.5, operation="scale_rows", target="sm_90a")
    assert "it has kernels of scale_rows with parameters={" in str(caught.value)
    with pytest.raises(KernelNotFound) as caught:
        bundle.choose(
            rows, rows, 0.5, operation="scale_rows", parameters={"n": 96, "fast": True}, target="sm_90a"
        )
    # The nearest come first.
    assert "with parameters={'fast': True, 'n': 128}, parameters={" in str(caught.value)
    with pytest.raises(KernelNotFound, match="its kernels of gemm take no parameters"):
        bundle.choose(rows, rows, rows, parameters={"n": 128}, target="sm_90a")
    with pytest.raises(KernelNotFound) as caught:
        bundle.choose(rows, rows, 0.5, operation="scale_row", target="sm_90a")
    assert str(caught.value).endswith(
        "no kernel for operation 'scale_row': it has gemm, scale_rows; did you mean 'scale_rows'?"
    )


def test_other_parameters_than_those_of_the_function_are_a_type_error():
    with pytest.raises(TypeError, match="missing a required argument: 'fast'"):
        scale_rows(n=128)
    with pytest.raises(TypeError, match="there is no parameter `m`: it takes n, fast"):
        scale_rows(n=128, fast=False, m=1)
    with pytest.raises(GeneratorError, match="parameter n = None"):
        scale_rows(n=None, fast=False)
    with pytest.raises(GeneratorError, match=r"parameter n = \[128\]"):
        scale_rows(n=[128], fast=False)


class Recorded:
    """Stands for a kernel's launch."""

    def __init__(self):
        self.calls = []

    def __call__(self, *operands, stream=None, workspace=None):
        self.calls.append((operands, stream))


@pytest.fixture
def launched(tmp_path, fresh, monkeypatch):
    """A bundle with a kernel for an H200, whose launches are noted."""
    monkeypatch.setattr(cuda_driver, "compute_capability", lambda ordinal: (9, 0) if ordinal == 0 else (8, 0))
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", [record(), record(target="sm_100a")]))
    fresh.append(bundle)
    note = Recorded()
    for kernel in bundle.kernels():
        kernel.__dict__["launch"] = note if kernel.target == "sm_90a" else None
    return note


def operands(ordinal=0):
    x = cutlass_aot.describe((4, 128), "bf16", device=ordinal)
    return x, cutlass_aot.describe((4, 128), "bf16", device=ordinal), 2.0


def test_a_call_launches_the_kernel_of_the_operands_gpu(launched):
    x, out, factor = operands()
    function = scale_rows(n=128, fast=False)
    function(x, out, factor, stream=7)
    function(x, factor=factor, out=out)
    function(factor=factor, out=out, x=x)
    assert launched.calls == [((x, out, factor), 7), ((x, out, factor), None), ((x, out, factor), None)]


@pytest.mark.parametrize(
    ("positional", "named"), [((0,), {"out": 1}), ((0, 1, 2), {"out": 1}), ((0, 1), {"scale": 2})]
)
def test_operands_by_other_names_are_refused(launched, positional, named):
    given = operands()
    with pytest.raises(OperandError, match="expected operands x, out, factor"):
        scale_rows(n=128, fast=False)(
            *(given[i] for i in positional), **{name: given[i] for name, i in named.items()}
        )


def test_operands_on_no_gpu_are_refused(launched):
    with pytest.raises(MisplacedOperand, match="operand `x` is on cpu"):
        scale_rows(n=128, fast=False)(*operands(-1))


def test_a_gpu_that_no_kernel_runs_on_is_a_miss_there(launched):
    function = scale_rows(n=128, fast=False)
    with pytest.raises(KernelNotFound, match=r"for GPU 1, compute capability 8\.0,"):
        function(*operands(1))
    assert policy.misses().total == 1


def test_policy_jit_asks_the_compiler_and_keeps_what_it_gave(launched, monkeypatch):
    made = []

    class Jit:
        @staticmethod
        def declared(kernel, values, ordinal):
            made.append((kernel.name, dict(values), ordinal))
            return launched, ("x", "out", "factor")

    monkeypatch.setattr(policy.importlib, "import_module", lambda name: Jit)
    with policy.use("jit"):
        function = scale_rows(n=128, fast=True)
        for _ in range(2):
            function(*operands(1))
    assert made == [("scale_rows", {"n": 128, "fast": True}, 1)]
    assert len(launched.calls) == 2
    # What was compiled serves under every policy from then on.
    assert scale_rows(n=128, fast=True) is function


# -- tuning -----------------------------------------------------------------------------------------------


def tuned_records(dtype="f32") -> list[Kernel]:
    found = DeclaredGenerator(tuned).enumerate(Problem("tuned", (), "", ""), "sm_90a", DEVICE)
    return [kernel for kernel in found if dict(kernel.parameters) == {"dtype": dtype}]


def test_a_cost_formula_of_several_lines_is_read_back_from_a_bundle(tmp_path):
    made = declare(
        tuned.function,
        name="on_lines",
        params={"dtype": ["f32"]},
        tuning={"threads": [128, 256], "wide": [False]},
        cost="""ceil(N
            / threads)""",
    )
    del declared._declared["on_lines"]
    record = DeclaredGenerator(made).kernel({"dtype": "f32", "threads": 128, "wide": False}, "sm_90a")
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", [record]))
    assert [group.cost for group in bundle.groups] == ["ceil(N / threads)"]


def test_kernels_that_differ_in_tuning_are_of_one_group():
    kernels = tuned_records()
    assert len({kernel.group for kernel in kernels}) == 1
    designs = [dict(kernel.design) for kernel in kernels]
    assert designs == [
        {"threads": 128, "wide": False},
        {"threads": 256, "wide": False},
        {"threads": 256, "wide": True},
    ]
    assert {kernel.cost for kernel in kernels} == {tuned.cost}


def test_a_table_filters_on_tuning():
    table = MANIFEST.replace("scale_rows", "tuned") + "threads = 256\nwide = true\n"
    parsed = parse_manifest(table.encode(), Path("m.toml"))
    sources = load_sources(parsed)
    (question,) = enumerations(parsed, sources)
    answers = sources.instances["tuned"].enumerate(question.problem, question.target, DEVICE)
    kernels = select(parsed, [(question, tuple(answers))], "4.8.1").kernels
    assert [dict(kernel.parameters)["dtype"] for kernel in kernels] == ["bf16", "f32"]


def described(count, **place):
    return [cutlass_aot.describe((count,), "f32", **place) for _ in range(2)]


def test_a_problem_takes_the_kernel_with_the_least_cost(tmp_path):
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", tuned_records()))
    named = {"operation": "tuned", "parameters": {"dtype": "f32"}}
    few = bundle.choose(*described(1000), **named)
    assert (few.kernel.design["threads"], few.tier) == (128, "declared")
    assert few.reason == "the least by its cost formula, 192"
    many = bundle.choose(*described(1_000_000), **named)
    assert many.kernel.design == {"threads": 256, "wide": True}
    assert [dict(item.kernel.design)["threads"] for item in many.expected] == [256, 256, 128]
    assert [item.kernel for item in many.expected] == bundle.find(*described(1_000_000), **named)


def test_measured_times_go_before_the_formula_also_those_of_a_problem_near(tmp_path):
    kernels = tuned_records()
    slow, fast, wide = (kernel.digest for kernel in kernels)
    measured = Ranking(
        group=kernels[0].group,
        gpu="NVIDIA H200",
        measured=True,
        origin="tuned",
        problems=RankedProblems(
            [RankedProblem(Extents(1, 1000, 1, 1), (wide, slow, fast), (1e-6, 2e-6, 3e-6))]
        ),
    )
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels, rankings=[measured]))
    named = {"operation": "tuned", "parameters": {"dtype": "f32"}, "gpu": "NVIDIA H200"}
    same = bundle.choose(*described(1000), **named)
    assert (same.kernel.digest, same.tier) == (wide, "tuned")
    assert same.reason == "N = 1000 was measured: 1.0 µs, the best of 3"
    assert bundle.find(*described(1000), **named)[1].digest == slow
    assert [item.microseconds for item in same.expected] == pytest.approx([1.0, 2.0, 3.0])
    near = bundle.choose(*described(1500), **named)
    assert [item.microseconds for item in near.expected] == [None] * 3
    assert (near.kernel.digest, near.reason) == (wide, "N = 1000, near N = 1500, was measured")
    far = bundle.choose(*described(1_000_000), **named)
    assert far.tier == "declared"
    other = bundle.choose(*described(1000), **{**named, "gpu": "NVIDIA H100"})
    assert other.tier == "declared"
    assert other.reason.endswith("; measured on NVIDIA H200, not on 'NVIDIA H100'")


def test_without_a_formula_the_reason_claims_no_time(tmp_path):
    kernels = [replace(kernel, cost="") for kernel in tuned_records()]
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels))
    choice = bundle.choose(*described(1000), operation="tuned", parameters={"dtype": "f32"})
    assert choice.tier == "default order"
    assert "neither times nor a cost formula" in choice.reason
    bundle = cutlass_aot.open(write_bundle(tmp_path / "one", kernels[:1]))
    assert (
        bundle.choose(*described(1000), operation="tuned", parameters={"dtype": "f32"}).reason
        == "the only one"
    )


@pytest.mark.parametrize("cost", ["threads / M", "N +", "import_(N)", "dtype", "N; N"])
def test_a_bundle_whose_formula_cannot_be_used_is_corrupt(tmp_path, cost):
    kernels = [replace(kernel, cost=cost) for kernel in tuned_records()]
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels))
    with pytest.raises(CorruptFile, match="cost formula that cannot be used"):
        bundle.choose(*described(1000), operation="tuned", parameters={"dtype": "f32"})


@pytest.mark.parametrize(
    ("cost", "problem"),
    [
        ("N / unknown", "'unknown' is none of the extents"),
        ("N / tread", "sm_mhz, threads, wide; did you mean 'threads'"),
        ("N / sm_cnt", "; did you mean 'sm_count'"),
        ("dtype + 1", "'dtype' is none of the extents"),
        ("N +", r"cost: in `cost = N \+`: not a statement"),
        ("max(N, threads)", "unknown function 'max'"),
    ],
)
def test_a_formula_that_could_not_be_evaluated_is_refused_at_the_build(monkeypatch, cost, problem):
    monkeypatch.setattr(tuned, "cost", cost)
    with pytest.raises(GeneratorError, match=problem):
        tuned_records()


def test_a_call_names_no_parameter_of_tuning(tmp_path, fresh, monkeypatch):
    monkeypatch.setattr(cuda_driver, "compute_capability", lambda ordinal: (9, 0))
    fresh.append(cutlass_aot.open(write_bundle(tmp_path / "bundle", tuned_records())))
    calls = []
    monkeypatch.setattr(type(fresh[0]), "run", lambda self, *given, **named: calls.append((given, named)))
    assert tuned("f32") is tuned(dtype="f32")
    x, out = described(1000, device=0)
    tuned("f32")(x, out=out)
    assert calls == [(("tuned", x, out), {"parameters": {"dtype": "f32"}, "stream": None, "workspace": None})]
    with pytest.raises(TypeError, match="threads"):
        tuned("f32", threads=128)
    with pytest.raises(TypeError, match="too many positional arguments"):
        tuned("f32", 128)
    with pytest.raises(KernelNotFound, match=r"no kernel tuned\(dtype='bf16'\)"):
        tuned("bf16")


def test_one_kernel_alone_is_launched_without_a_choice(tmp_path, fresh, monkeypatch):
    monkeypatch.setattr(cuda_driver, "compute_capability", lambda ordinal: (9, 0))
    fresh.append(cutlass_aot.open(write_bundle(tmp_path / "bundle", tuned_records()[:1])))
    note = Recorded()
    (kernel,) = fresh[0].kernels()
    kernel.__dict__["launch"] = note
    tuned("f32")(*described(1000, device=0))
    assert len(note.calls) == 1


def test_declaring_imports_neither_the_build_side_nor_the_dsl():
    program = (
        "import sys\n"
        "for name in ('cutlass', 'torch'): sys.modules[name] = None\n"
        "import cutlass_aot.kernels.swiglu, cutlass_aot.kernels.rms_norm, cutlass_aot.kernels.gather_reduce\n"
        "import cutlass_aot.kernels.conv2d_fprop\n"
        "build = ('builder', 'generators', 'manifest', 'store', 'bundle', 'cli', 'jit')\n"
        "loaded = [m for m in sys.modules if m.split('.')[0] == 'cutlass_aot']\n"
        "assert not [m for m in loaded if m.split('.')[1:2] and m.split('.')[1] in build], loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_misspelt_parameter_is_told_from_those_that_are_declared():
    with pytest.raises(TypeError, match=r"^kernel scale_rows: .*; did you mean 'fast'\?: it takes n, fast$"):
        scale_rows(n=64, fats=True)
