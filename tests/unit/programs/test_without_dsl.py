"""What stands for the DSL where it is not: names, and refusals that say what was requested.

Each case is a process of its own, or a fork of one: the names take the place of the DSL in all of it.
"""

from __future__ import annotations

import textwrap

import pytest

from cutlass_aot.errors import DslNeeded
from cutlass_aot.programs.without_dsl import names
from cutlass_aot.programs.without_dsl.layout import Layout
from tests.support.forks import Forks

BEGIN = """\
from cutlass_aot import without_dsl
without_dsl.activate("4.8.1 0123")
import cutlass
import cutlass.cute as cute
from cutlass_aot.errors import CutlassAotError, DslNeeded, RequestError
from cutlass_aot.programs.describe.values.describer import Describer
"""


@pytest.fixture(scope="module")
def begun():
    """A process where the names have taken that place."""
    process = Forks(BEGIN)
    yield process
    process.close()


@pytest.fixture(scope="module")
def printed(begun):
    return lambda text: begun.run(textwrap.dedent(text)).strip()


def printed_anew(text: str) -> str:
    """By a process that has not begun."""
    process = Forks("")
    try:
        return process.run(textwrap.dedent(text)).strip()
    finally:
        process.close()


@pytest.fixture(scope="module")
def raised(printed):
    return lambda expression: printed(
        f"""
        try:
            {expression}
        except CutlassAotError as error:
            print(type(error).__name__, error)
        """
    )


@pytest.mark.parametrize(
    ("expression", "refusal"),
    [
        ("cute.make_layout((4, 8))", "cutlass.cute.core.make_layout was called"),
        ("cute.size((4, 8))", "cutlass.cute.size was called"),
        ("cute.nvgpu.cpasync.CopyReduceBulkTensorTileS2GOp()", "CopyReduceBulkTensorTileS2GOp was called"),
        ("bool(cute.size)", "cutlass.cute.size was used (bool)"),
        ("list(cute.size)", "cutlass.cute.size was used (iter)"),
        ("cute.size + 1", "cutlass.cute.size was used (add)"),
        ("cute.size == 1", "cutlass.cute.size was compared"),
        ("cutlass.Float32.mlir_type", "cutlass.base_dsl.typing.Float32.mlir_type was requested"),
        ("cutlass.Int8(300)", "cutlass.base_dsl.typing.Int8 of 300"),
        ("cutlass.Int32(1) + 1", "cutlass.base_dsl.typing.Numeric.__add__ was called"),
        ("cute.jit(print)(1)", "builtins.print was called, and no bundle answered"),
        ("cute.kernel(print)(1)", "builtins.print, which a trace calls, was called"),
        ("cute.compile(print)", "cute.compile was called, and no bundle answered"),
        ("cute.experimental.compile(print)", "cute.compile was called, and no bundle answered"),
        ("cutlass.utils.HardwareInfo()._get_device_function()", "_get_device_function of HardwareInfo was"),
        ("cute.arch.warp_reduction_sum(1)", "cutlass.cute.arch.nvvm_wrappers.warp_reduction_sum was called"),
        ("import cutlass.jax", "the module cutlass.jax was imported"),
        ("import cutlass._mlir.ir as ir; ir.Context()", "cutlass._mlir.ir.Context was called"),
        ("isinstance(1, cutlass.base_dsl.typing.JitArgument)", "whether an object is a"),
    ],
)
def test_a_use_of_a_name_is_refused_with_the_name(raised, expression, refusal):
    text = raised(expression)
    assert text.startswith("DslNeeded"), text
    assert refusal in text
    assert "pip install nvidia-cutlass-dsl" in text


def test_names_that_the_dsl_does_not_have_are_absent(printed):
    assert printed("print(hasattr(cute, 'no_such_name'), hasattr(cutlass, 'Float32'))") == "False True"
    imported = "try:\n    {}\nexcept ImportError as error:\n    print(error)\n"
    assert "no_such_name" in printed(imported.format("from cutlass.cute import no_such_name"))
    absent = printed(imported.format("import cutlass.no_such_module"))
    assert "No module named 'cutlass.no_such_module'" in absent


def test_it_is_an_error_where_the_dsl_is_imported_already():
    text = printed_anew(
        """
        import sys, types
        sys.modules["cutlass"] = types.ModuleType("cutlass")
        from cutlass_aot import without_dsl
        try:
            without_dsl.activate()
        except Exception as error:
            print(type(error).__name__, error)
        """
    )
    assert text.startswith("ProgramError the package cutlass is imported already")


def test_a_second_activation_does_nothing(printed):
    assert printed("without_dsl.activate(); print(without_dsl.is_active())") == "True"


def test_nothing_is_imported_until_the_program_imports_it():
    text = printed_anew(
        """
        import sys
        from cutlass_aot import without_dsl
        without_dsl.activate("4.8.1 0123")
        print([name for name in sys.modules if name.partition(".")[0] in ("cutlass", "torch", "numpy")])
        """
    )
    assert text == "[]"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("cute.size", "cutlass.cute.size"),
        ("cute.Shape", "cutlass.cute.Shape"),
        ("(1, {'a': cute.size})", "x[1]['a']"),
        ("cutlass._mlir.ir.Value", "cutlass._mlir.ir.Value"),
    ],
)
def test_a_placeholder_in_a_key_is_refused(raised, value, reason):
    text = raised(f"print(Describer().argument('x', {value}))")
    assert text.startswith("RequestError x"), text
    assert reason in text
    assert "without the DSL it cannot be described" in text


@pytest.mark.parametrize(
    ("value", "described"),
    [
        ("cutlass.Float32", "{'type': 'cutlass.base_dsl.typing:Float32'}"),
        ("cute.Tensor", "{'type': 'cutlass.cute.typing:Tensor'}"),
        ("cute.AddressSpace.gmem", "{'enum': 'cutlass.base_dsl.enums:AddressSpace.gmem'}"),
        ("cutlass.base_dsl.enums.Arch.sm_101a", "{'enum': 'cutlass.base_dsl.enums:Arch.sm_110a'}"),
        ("cute.make_layout", "{'function': 'cutlass.cute.core:make_layout'}"),
        (
            "cutlass._mlir.dialects.nvvm.sub_packed_f32x2",
            "{'function': 'cutlass._mlir.dialects._nvvm_ops_gen:sub_packed_f32x2'}",
        ),
        (
            "cutlass._mlir.dialects.cute.AddressSpace.gmem",
            "{'enum': 'cutlass._mlir.dialects._cute_enum_gen:AddressSpace.gmem'}",
        ),
        (
            "cute.experimental.OperationTypeEnum.SM90_TMA_LOAD",
            "{'enum': 'cutlass._mlir.dialects._core_enum_gen:OperationTypeEnum.SM90_TMA_LOAD'}",
        ),
        (
            "cutlass.experimental.primitives.TmemAddr(3)",
            "{'number': 'cutlass.experimental.primitives.descriptors:TmemAddr', 'value': 3}",
        ),
        ("cutlass.Constexpr[int]", "{'type': 'cutlass.base_dsl.typing.Constexpr[int]'}"),
        (
            "cutlass.pipeline.NamedBarrier(barrier_id=1, num_threads=32)",
            "{'object': 'cutlass.pipeline.helpers:NamedBarrier', "
            "'fields': {'barrier_id': 1, 'num_threads': 32}}",
        ),
    ],
)
def test_what_is_known_is_described_by_the_dsls_own_name(printed, value, described):
    assert printed(f"print(Describer().argument('x', {value}))") == described


def test_the_parameters_of_functions_that_programs_inspect_are_the_dsls(printed):
    text = printed(
        """
        import inspect
        from cutlass._mlir.dialects import nvvm

        names = inspect.signature(nvvm.fmax).parameters
        print(*names, sum(item.kind is item.POSITIONAL_OR_KEYWORD for item in names.values()))
        try:
            nvvm.fmax(1, 2)
        except DslNeeded as error:
            print(error)
        """
    )
    parameters, refusal = text.splitlines()
    assert parameters == "a b c ftz nan abs results loc ip 2"
    assert refusal.startswith("cutlass._mlir.dialects._nvvm_ops_gen.fmax was called")


def test_their_defaults_are_the_dsls_if_they_are_plain(printed):
    text = printed(
        """
        import inspect
        named = inspect.signature(cute.arch.mul_packed_f32x2).parameters
        print(*(repr(named[name].default) for name in ("rnd", "calc_func", "src_a")))
        """
    )
    assert text == "'rn' None <class 'inspect._empty'>"


def test_every_enumeration_of_the_dialects_has_its_members(printed):
    text = printed(
        """
        import enum, importlib
        names = "arith.FastMathFlags", "cuda.CUDeviceAttr", "cute_nvgpu.Arch", "vector.CombiningKind"
        for module, _, name in (name.partition(".") for name in names):
            found = getattr(importlib.import_module(f"cutlass._mlir.dialects.{module}"), name)
            print(type(found) is enum.EnumMeta, len(found.__members__) > 3, found.__module__)
        """
    )
    dialects = ("arith", "cuda", "cute_nvgpu", "vector")
    modules = [f"cutlass._mlir.dialects._{dialect}_enum_gen" for dialect in dialects]
    assert text.splitlines() == [f"True True {module}" for module in modules]


def test_resources_of_a_schedule_are_declared(printed):
    """As FlashInfer does when its attention is imported; requests follow decorated methods."""
    text = printed(
        """
        import dataclasses
        from cutlass.experimental.task_scheduling import resources
        from cutlass.experimental.task_scheduling.resources import MemoryResource, TaskLocalVariable

        @dataclasses.dataclass(kw_only=True)
        class Own(MemoryResource):
            offset: cutlass.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()

            @resources.producer_work
            def load(self, stage_info):
                pass

            @resources.consumer_work(returns=offset)
            def read(self, stage_info):
                pass

        fields = {field.name: field for field in dataclasses.fields(Own)}
        print(fields["offset"].init, dict(fields["offset"].metadata), fields["consumer_vars"].default_factory)
        print(Own.load.__wrapped__.__name__, Own.read.__wrapped__.__qualname__)
        print(Own.__hash__ is MemoryResource.__hash__)
        try:
            Own.load(None, None)
        except DslNeeded as error:
            print(error)
        """
    ).splitlines()
    assert text[:3] == ["False {'ts': {}} <class 'dict'>", "load Own.read", "True"]
    assert text[3].startswith("cutlass.experimental.task_scheduling.resources.producer_work was called")


def test_the_cuda_version_of_the_dsl_is_compared(printed, raised):
    major, minor = names.cuda_version()
    later = f"{major + 1}.0"
    conditions = [
        f"exact_version='{major}.{minor}'", "min_version='12.0'", f"min_version='{later}'",
        f"min_version='12.0', max_version='{later}'", "max_version='11.8'",
    ]  # fmt: skip
    text = printed(f"print(*({', '.join(f'cutlass.target_version({item})' for item in conditions)},))")
    assert text == "True True False True False"
    assert raised("cutlass.target_version()").startswith("DslNeeded target_version without a version")


def test_what_decorates_a_class_is_described_by_the_types_of_its_fields(printed):
    code = """
        @cute.struct
        class Storage:
            flags: cute.struct.MemRange[cutlass.Int64, 2]
            values: cute.struct.Align[cute.struct.MemRange[cutlass.Float32, 64], 128]
            one: cutlass.Int32

        print(type(Storage).__module__, type(Storage).__qualname__, Describer().argument("x", Storage))
        """
    text = printed(code)
    assert text.startswith("cutlass.cute.core struct {'structure': [['flags', ['MemRange', ")
    assert "64], 128]" in text
    assert "64], 256]" in printed(code.replace("128", "256"))


@pytest.mark.parametrize(
    ("shape", "strides", "mode", "found"),
    [
        ((2048, 1, 256), (256, 256, 1), 0, "(?,1,256):(256,0,1)"),
        ((4, 1, 3, 4), (12, 12, 1, 3), 2, "(4,1,?,4):(?{i64 div=4},0,1,?{i64})"),
        ((4, 1), (1, 1), 0, None),
        ((1, 3, 8, 1), (24, 1, 3, 3), 2, None),
        ((4, 1, 8), (8, 8, 1), 1, None),
    ],
)
def test_the_order_of_modes_is_known_where_extents_of_1_take_no_part(shape, strides, mode, found):
    layout = Layout(shape, strides, "gmem", 64)
    if found is None:
        with pytest.raises(DslNeeded, match="without stride_order"):
            layout.compact_dynamic(mode, None, 1)
    else:
        layout.compact_dynamic(mode, None, 1)
        assert str(layout) == f"gmem o {found}"


def test_a_class_of_the_programs_own_may_be_derived_from_one_of_the_dsls(printed):
    text = printed(
        """
        import abc, dataclasses
        from cutlass.pipeline import PipelineTmaAsync

        @dataclasses.dataclass(frozen=True)
        class Own(PipelineTmaAsync):
            stages: int = 2

        class Other(cutlass._mlir.ir.Value, metaclass=type(cutlass._mlir.ir.Value)):
            pass

        class Abstract(cute.Tensor, abc.ABC):
            pass

        print([field.name for field in dataclasses.fields(Own)][-2:], issubclass(Own, PipelineTmaAsync))
        """
    )
    assert text == "['is_signaling_thread', 'stages'] True"


def test_the_fingerprint_is_that_of_the_bundles():
    text = printed_anew(
        """
        from cutlass_aot import without_dsl
        from cutlass_aot.errors import DslNeeded
        without_dsl.activate()
        for found in ("", "4.9.0 01", "4.8.1 23"):
            without_dsl.take_fingerprint(lambda: found)
            try:
                print(without_dsl.fingerprint())
            except DslNeeded as error:
                print(error)
        """
    ).splitlines()
    assert "serve a bundle" in text[0]
    assert "built by nvidia-cutlass-dsl 4.9.0, and the names known here are those of 4.8.1" in text[1]
    assert text[2] == "4.8.1 23"


def test_a_setting_of_the_dsl_in_the_environment_is_refused(printed):
    text = printed(
        """
        import os
        from cutlass.base_dsl.dsl import BaseDSL
        settings = BaseDSL._get_dsl().envar
        os.environ["CUTE_DSL_ARCH"] = "sm_90a"
        os.environ["CUTE_DSL_ENABLE_TVM_FFI"] = "yes"
        print(settings.arch, settings.enable_tvm_ffi, settings._ENV_VAR_SPEC)
        os.environ["CUTE_DSL_LINEINFO"] = "1"
        try:
            settings._ENV_VAR_SPEC
        except DslNeeded as error:
            print(error)
        """
    ).splitlines()
    assert text[0] == "sm_90a True ()"
    assert text[1].startswith("the environment variable CUTE_DSL_LINEINFO was set")
