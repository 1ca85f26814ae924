"""Random programs: equal keys mean equal objects, and what changes the object changes the key.

A program is one of a few sources, and values that are passed to it: tensors, constants, a dynamic scalar, an
object of settings, a closure, module-level values that it sets.

How objects are compared: the DSL writes the values of arguments into the names of kernels, even of those that
nothing uses, so that two objects nearly always differ in some name. Names decide nothing that runs. "Equal"
is therefore said twice: two calls of one key must give objects that are equal byte for byte, names and all,
and a changed field counts as a change of the object only if something else than names differs
(``tools/check/cache_conformance/code.py``).

In CI there are a few programs, always the same. ``REQUEST_PROPERTIES=300 pytest ...`` takes 300 random ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.packages import hide_torch
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.compile

EXAMPLES = int(os.environ.get("REQUEST_PROPERTIES", "0"))

PROGRAM = """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

SCALE = 1
THREADS = 32

class Config:
    def __init__(self, stages):
        self.stages = stages

def shifted(shift):
    return lambda x: x {operator} shift

@cute.kernel
def kernel(a: cute.Tensor, b, config: cutlass.Constexpr, modify: cutlass.Constexpr, flag: cutlass.Constexpr, scalar):
    thread, _, _ = cute.arch.thread_idx()
    value = a[thread] * a.element_type(SCALE) + a.element_type(scalar)
    if cutlass.const_expr(flag{test}):
        value = modify(value)
    if cutlass.const_expr(b is not None):
        value = value + b[thread].to(a.element_type)
    for _ in cutlass.range_constexpr(config.stages):
        value = value * value
    a[thread] = value.to(a.element_type)

@cute.jit
def launch(a: cute.Tensor, b, config: cutlass.Constexpr, modify: cutlass.Constexpr, flag: cutlass.Constexpr, scalar, stream):
    kernel(a, b, config, modify, flag, scalar).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), stream=stream)

def tensor(dtype, extent, divisibility, stride, alignment):
    shape = cute.sym_int32(divisibility=divisibility) if extent is None else extent
    return make_fake_tensor(getattr(cutlass, dtype), (shape,), (stride,), assumed_align=alignment)

def arguments(scale, shift, flag, stages, threads, dtype, extent, divisibility, stride, alignment, optional, scalar):
    global SCALE, THREADS
    SCALE, THREADS = scale, threads
    a = tensor(dtype, extent, divisibility, stride, alignment)
    b = tensor(dtype, extent, divisibility, 1, None) if optional else None
    number = (cutlass.Float32 if isinstance(scalar, float) else cutlass.Int32)(scalar)
    return launch, a, b, Config(stages), shifted(shift), flag, number, make_fake_stream(use_tvm_ffi_env_stream=True)
"""  # noqa: E501


@dataclass(frozen=True)
class Program:
    """The first two stand in the source; the rest is passed, or set, by whoever calls it."""

    operator: str = "+"
    test: str = ""
    scale: int | float = 2
    shift: int = 3
    flag: bool | int | float | None = True
    stages: int = 1
    threads: int = 32
    dtype: str = "Float32"
    extent: int | None = None
    divisibility: int = 1
    stride: int = 1
    alignment: int = 4
    optional: bool = False
    scalar: int | float = 2.0

    @property
    def source(self) -> str:
        return PROGRAM.format(operator=self.operator, test=self.test)

    @property
    def passed(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if name not in ("operator", "test")}


VALUES = {
    "operator": st.sampled_from(["+", "-", "*"]),
    "test": st.sampled_from(["", " is True", " == 1"]),
    "scale": st.sampled_from([2, 2.0, 3, -1]),
    "shift": st.sampled_from([1, 3]),
    "flag": st.sampled_from([True, False, 1, 1.0, 0, None]),
    "stages": st.integers(0, 2),
    "threads": st.sampled_from([32, 64]),
    "dtype": st.sampled_from(["Float32", "Float16", "Int32"]),
    "extent": st.sampled_from([None, 64, 128]),
    "divisibility": st.sampled_from([1, 8]),
    "stride": st.sampled_from([1, 2]),
    "alignment": st.sampled_from([4, 16]),
    "optional": st.booleans(),
    "scalar": st.sampled_from([2.0, 5.0, 2, 5]),
}
PROGRAMS = st.builds(Program, **VALUES)


@st.composite
def changes(draw):
    """A program, and the same with one field of another value."""
    program = draw(PROGRAMS)
    name = draw(st.sampled_from(sorted(VALUES)))
    value = draw(VALUES[name].filter(lambda value: repr(value) != repr(getattr(program, name))))
    return program, replace(program, **{name: value})


_SERVER = """
import gc, hashlib, json, os, sys, tempfile
from pathlib import Path
import cutlass.cute as cute
from tools.check.cache_conformance.code import without_names
from cutlass_aot.builder.compile.export import export
from cutlass_aot.programs.describe.request import Surroundings, request_of

def answer(folder):
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    import program
    values = json.loads(Path(folder, "values").read_text())
    arguments, options = program.arguments(**values), {"options": "--enable-tvm-ffi"}
    surroundings = Surroundings(lambda target: {"sm_count": 132}, lambda target, numbers: {})
    request = request_of(cute.compile, arguments, options, surroundings)
    item = export(cute.compile(*arguments, **options), "property", Path(folder, "code.ll"))
    digests = [hashlib.sha256(data).hexdigest() for data in (item.to_bytes(), without_names(item))]
    Path(folder, "answer").write_text(json.dumps([request.digest, *digests]))

# What the compiler sets up once a process is set up here.
@cute.jit
def nothing(stream):
    pass

cute.compile(nothing, cute.runtime.make_fake_stream(), options="--enable-tvm-ffi")
gc.freeze()  # forks do not collect what they share
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            answer(line.strip())
        except BaseException as error:
            Path(line.strip(), "answer").write_text(json.dumps([f"{type(error).__name__}: {error}"]))
        os._exit(0)
    os.waitpid(pid, 0)
    print(flush=True)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compiles a program in a fork: its key, its object, its code without names; or the error."""
    folder = tmp_path_factory.mktemp("properties")
    (folder / "server.py").write_text(_SERVER)
    hide_torch(folder)
    process = subprocess.Popen(
        [sys.executable, folder / "server.py"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(os.fspath, (REPOSITORY, REPOSITORY / "tools"))),
            "CUTE_DSL_ARCH": "sm_90a",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # The directory is the same each time, as it would be for somebody who edits a program: the key names the
    # source, the object may not have the path.
    place = folder / "place"
    place.mkdir()

    def compile(program):
        (place / "program.py").write_text(program.source)
        (place / "values").write_text(json.dumps(program.passed))
        process.stdin.write(f"{place}\n")
        process.stdin.flush()
        process.stdout.readline()
        return json.loads((place / "answer").read_text())

    yield compile
    process.communicate()


@pytest.fixture(scope="module")
def plain(compiled):
    """What the program without a change gives."""
    return compiled(Program())


def _settings(examples):
    random = EXAMPLES > 0
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not random,
        database=None,
        phases=[Phase.generate] if not random else [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )


@given(changes())
@_settings(20)
def test_what_changes_the_code_changes_the_key(compiled, pair):
    first, second = map(compiled, pair)
    if len(first) == 1 or len(second) == 1:
        return  # The DSL refuses one of them, and so there is nothing to be told apart.
    if first[2] != second[2]:
        assert first[0] != second[0]
    if first[0] == second[0]:
        assert first[1] == second[1]


@given(PROGRAMS)
@_settings(4)
def test_equal_programs_have_equal_keys_and_equal_objects(compiled, program):
    """In two processes."""
    first, second = compiled(program), compiled(program)
    assert first == second


def test_a_dynamic_scalar_is_in_neither_the_key_nor_the_object(compiled, plain):
    assert Program().scalar != 5.0
    assert compiled(Program(scalar=5.0)) == plain


@pytest.mark.parametrize(
    "change", [{"scale": 3}, {"shift": 1}, {"operator": "*"}, {"flag": False}, {"stages": 2}, {"stride": 2}]
)
def test_the_programs_are_sensitive_to_their_fields(compiled, plain, change):
    """Otherwise the properties above would say nothing."""
    assert compiled(replace(Program(), **change))[2] != plain[2]
