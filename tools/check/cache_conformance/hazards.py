"""The hazards: small programs that are requested twice, and whether the second may be answered by the first.

The function that is compiled is nearly the same everywhere: a kernel whose elements go through a function
``modify`` that the program passes, as attention kernels take a ``score_mod``. What decides the code beside it
is the hazard.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tools.check.cache_conformance.protocol import SM_COUNT

COMMON = '''\
"""What all programs of the suite have in common."""

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

TVM_FFI = "--enable-tvm-ffi"


@cute.kernel
def kernel(values: cute.Tensor, modify: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    values[thread] = modify(values[thread])


@cute.jit
def launch(values: cute.Tensor, modify: cutlass.Constexpr, stream):
    kernel(values, modify).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


def tensor(dtype=cutlass.Float32, stride=1, alignment=None):
    return make_fake_tensor(dtype, (cute.sym_int32(),), (stride,), assumed_align=alignment)


def stream():
    return make_fake_stream(use_tvm_ffi_env_stream=True)


def compile_with(modify):
    return cute.compile(launch, tensor(), modify, stream(), options=TVM_FFI)
'''


class Expected(enum.Enum):
    """What the second call must be."""

    TWO = "must differ"
    ONE = "should be shared"
    ONE_OR_REFUSED = "shared or refused"
    RECOVERED = "must be a miss"
    BOTH = "both must be right"


class Steps(enum.Enum):
    """How the calls are made."""

    TWO_PROCESSES = "two processes"
    ONE_PROCESS = "one process"
    KILLED = "a process that is killed as it writes, two more"
    DAMAGED = "one process, the entry is cut in half, two more"
    AT_ONCE = "two processes at once, one more"


@dataclass(frozen=True, slots=True)
class Hazard:
    """One way to a wrong answer, or to a compilation that was not needed.

    Attributes:
        name: of it.
        text: what it is.
        met: where it was met.
        program: source of the module ``program``, which defines ``first`` and ``second``: functions that give
            a function that compiles, its arguments, and its keywords.
        expected: what the second call must be.
        steps: how the calls are made.
        files: further files of the program, by their paths.
        edited: files that are others, or new, before the second call.
        environment: of the first call, and of the second.
        fresh: whether the processes are started anew, since what differs is read before any program is
            imported.
        script: whether the program is the process's ``__main__``, not a module.
        path: further directories of the program that are searched for modules.
    """

    name: str
    text: str
    met: str
    program: str
    expected: Expected = Expected.TWO
    steps: Steps = Steps.TWO_PROCESSES
    files: Mapping[str, str] = field(default_factory=dict)
    edited: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    fresh: bool = False
    script: bool = False
    path: tuple[str, ...] = ()


_SAME = """
from common import compile_with

def modify(x):
    return x * 2.0

def first():
    return compile_with, (modify,), {}

second = first
"""


def _modified(body: str, *, head: str = "", before: str = "") -> str:
    """A program whose function ``modify`` has a body, with one call that is made twice."""
    return f"""
{head}
from common import compile_with

def modify(x):
    {body}

def first():
    return compile_with, (modify,), {{}}

def second():
    {before or "pass"}
    return compile_with, (modify,), {{}}
"""


_BY_ENVIRONMENT = "import os\nSCALE = float(os.environ['HAZARD_SCALE'])\n"
_TWO_SCALES = ({"HAZARD_SCALE": "2"}, {"HAZARD_SCALE": "3"})


def _two(*modified: str, head: str = "") -> str:
    """A program that passes one function, then another."""
    return f"""
{head}
from common import compile_with

def first():
    return compile_with, ({modified[0]},), {{}}

def second():
    return compile_with, ({modified[1]},), {{}}
"""


def _argument(body: str, values: tuple[str, str], *, dtype: str = "cutlass.Float32") -> str:
    """A program that passes a value to be compiled in."""
    return f"""
import cutlass
import cutlass.cute as cute
from common import stream, tensor, TVM_FFI

@cute.kernel
def kernel(values: cute.Tensor, value: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    {body}

@cute.jit
def launch(values: cute.Tensor, value: cutlass.Constexpr, stream):
    kernel(values, value).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

def compile_it(value):
    return cute.compile(launch, tensor({dtype}), value, stream(), options=TVM_FFI)

def first():
    return compile_it, ({values[0]},), {{}}

def second():
    return compile_it, ({values[1]},), {{}}
"""


def _annotated(annotation: str, body: str, values: tuple[str, str], head: str = "") -> str:
    """A program that passes a value under an annotation."""
    return f"""
import cutlass
import cutlass.cute as cute
from common import stream, tensor, TVM_FFI
{head}

@cute.kernel
def kernel(values: cute.Tensor, value):
    thread, _, _ = cute.arch.thread_idx()
    values[thread] = values[thread] * value

@cute.jit
def launch(values: cute.Tensor, value: {annotation}, stream):
    kernel(values, {body}).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

def compile_it(value):
    return cute.compile(launch, tensor(), value, stream(), options=TVM_FFI)

def first():
    return compile_it, ({values[0]},), {{}}

def second():
    return compile_it, ({values[1]},), {{}}
"""


def _tensors(first: str, second: str) -> str:
    """A program whose tensor is another one; a caller passes what it makes the tensor from."""
    return f"""
import cutlass
import cutlass.cute as cute
from common import launch, stream, tensor, TVM_FFI

def modify(x):
    return x + x

def compile_it(**keywords):
    return cute.compile(launch, tensor(**keywords), modify, stream(), options=TVM_FFI)

def first():
    return compile_it, (), dict({first})

def second():
    return compile_it, (), dict({second})
"""


def _options(first: str, second: str) -> str:
    return f"""
import cutlass.cute as cute
from common import launch, stream, tensor

def modify(x):
    return x * 2.0

def compile_it(options):
    return cute.compile(launch, tensor(), modify, stream(), options=options)

def first():
    return compile_it, ({first!r},), {{}}

def second():
    return compile_it, ({second!r},), {{}}
"""


_KIND = (
    "values[thread] = values[thread] * "
    "(2.0 if isinstance(value, bool) else 3.0 if isinstance(value, int) else 4.0)"
)
_USES_PACKAGE = _modified("return x * numbers_package.scale()", head="import numbers_package")
_PACKAGE = "../site/numbers_package/__init__.py"


def _package(factor: float) -> str:
    return f"def scale():\n    return FACTOR\n\nFACTOR = {factor}\n"


def _installed(version: str, factor: float) -> dict[str, str]:
    """The files of a package as an installer leaves them."""
    folder = f"numbers_package-{version}.dist-info"
    return {
        _PACKAGE: _package(factor),
        f"../site/{folder}/METADATA": f"Metadata-Version: 2.1\nName: numbers-package\nVersion: {version}\n",
        f"../site/{folder}/RECORD": f"numbers_package/__init__.py,,\n{folder}/METADATA,,\n",
    }


HAZARDS: tuple[Hazard, ...] = (
    # -- what a trace reads beside its arguments --------------------------------------------------------
    Hazard(
        "environment",
        "An environment variable is read while tracing.",
        "FlashAttention-4 and quack read switches in functions that kernels call.",
        _modified('return x * float(os.environ.get("HAZARD_SCALE", "2"))', head="import os"),
        environment=({"HAZARD_SCALE": "2"}, {"HAZARD_SCALE": "3"}),
    ),
    Hazard(
        "environment at import",
        "A module-level value is made from an environment variable when its module is imported.",
        "FLASH_ATTENTION_* switches of FlashAttention-4.",
        _modified(
            "return x * SCALE",
            head='import os\nSCALE = float(os.environ.get("HAZARD_SCALE", "2"))',
        ),
        environment=({"HAZARD_SCALE": "2"}, {"HAZARD_SCALE": "3"}),
    ),
    Hazard(
        "global",
        "A module-level switch is flipped between two compilations.",
        "quack's and FlashInfer's switches for fast mathematics.",
        _modified("return x * SCALE", head="SCALE = 2.0", before="global SCALE; SCALE = 3.0"),
    ),
    Hazard(
        "global in a table",
        "An entry of a module-level dictionary is changed.",
        "Tables of tile shapes.",
        _modified('return x * TABLE["x"]', head='TABLE = {"x": 2.0}', before='TABLE["x"] = 3.0'),
    ),
    Hazard(
        "global object",
        "A field of a module-level object is changed.",
        "Objects of settings that a module makes once.",
        _modified(
            "return x * SETTINGS.scale",
            head="""
class Settings:
    def __init__(self):
        self.scale = 2.0

SETTINGS = Settings()
""",
            before="SETTINGS.scale = 3.0",
        ),
    ),
    Hazard(
        "class attribute",
        "An attribute of a class is changed that a kernel reads.",
        "Stages and tile sizes as class attributes.",
        _modified(
            "return x * Settings.scale",
            head="class Settings:\n    scale = 2.0",
            before="Settings.scale = 3.0",
        ),
    ),
    Hazard(
        "replaced function",
        "A module-level function is replaced by another one of the same module.",
        "Tests and experiments that patch a kernel's helper.",
        _modified(
            "return helper(x)",
            head="def helper(x):\n    return x * 2.0\n\ndef other(x):\n    return x * 3.0",
            before="global helper; helper = other",
        ),
    ),
    Hazard(
        "edited helper",
        "A constant of another module is edited; the kernel's source is as it was.",
        "An edit of flash_attn/cute/softmax.py left a kernel as up to date.",
        _modified("return x * helper.scale()", head="import helper"),
        files={
            "helper.py": "from numbers_ import FACTOR\n\ndef scale():\n    return FACTOR\n",
            "numbers_.py": "FACTOR = 2.0\n",
        },
        edited={"numbers_.py": "FACTOR = 3.0\n"},
    ),
    Hazard(
        "edited constant of a script",
        "A constant of the program's own script is edited; its functions are as they were.",
        "Examples and benchmarks, which are scripts.",
        _modified("return x * SCALE", head="SCALE = 2.0"),
        edited={"program.py": _modified("return x * SCALE", head="SCALE = 3.0")},
        script=True,
    ),
    Hazard(
        "edited lambda of a script",
        "A lambda of the program's own script is edited that a kernel calls by its name.",
        "As above.",
        _modified("return helper(x)", head="helper = lambda x: x * 2.0"),
        edited={"program.py": _modified("return helper(x)", head="helper = lambda x: x * 3.0")},
        script=True,
    ),
    Hazard(
        "closure at import",
        "A module-level function was made by another one, from a value that its source does not tell.",
        "Factories of epilogues, called when a module is imported.",
        _modified(
            "return helper(x)",
            head="""
import os

def scaled(factor):
    return lambda x: x * factor

helper = scaled(float(os.environ.get("HAZARD_SCALE", "2")))
""",
        ),
        environment=({"HAZARD_SCALE": "2"}, {"HAZARD_SCALE": "3"}),
    ),
    Hazard(
        "definition at import",
        "Which of two definitions a name has is decided when its module is imported.",
        "Helpers of FlashInfer that depend on what is installed.",
        _modified(
            "return helper(x)",
            head=_BY_ENVIRONMENT
            + "if SCALE == 2:\n    def helper(x):\n        return x * 2.0\n"
            + "else:\n    def helper(x):\n        return x * 3.0\ndel SCALE",
        ),
        environment=_TWO_SCALES,
    ),
    Hazard(
        "alias at import",
        "A name is one or another function of the DSL, as its module decides when it is imported.",
        "Switches for fast mathematics.",
        _modified(
            "return helper(x)",
            head=f"import cutlass.cute as cute\n{_BY_ENVIRONMENT}"
            "helper = cute.math.sin if SCALE == 2 else cute.math.cos\ndel SCALE",
        ),
        environment=_TWO_SCALES,
    ),
    Hazard(
        "enumeration at import",
        "The value of an enumeration's member is computed when its module is imported.",
        "Tables of tile shapes.",
        _modified(
            "return x * Scale.ONE.value",
            head=f"import enum\n{_BY_ENVIRONMENT}class Scale(enum.Enum):\n    ONE = SCALE\ndel SCALE",
        ),
        environment=_TWO_SCALES,
    ),
    Hazard(
        "function in a table",
        "A function that is called by way of a dictionary reads a module-level value.",
        "quack's tables of activations.",
        _modified(
            'return TABLE["x"](x)',
            head=f'{_BY_ENVIRONMENT}def helper(x):\n    return x * SCALE\nTABLE = {{"x": helper}}',
        ),
        environment=_TWO_SCALES,
    ),
    Hazard(
        "method of a global object",
        "A method of a module-level object reads a module-level value.",
        "Objects with a program's configuration.",
        _modified(
            "return OWN.by(x)",
            head=f"{_BY_ENVIRONMENT}class Own:\n    def by(self, x):\n        return x * SCALE\nOWN = Own()",
        ),
        environment=_TWO_SCALES,
    ),
    Hazard(
        "method of an enumeration",
        "A method of an enumeration reads a module-level value.",
        "Enumerations of layouts and data types.",
        _modified(
            "return x * Own.ONE.by()",
            head=f"import enum\n{_BY_ENVIRONMENT}class Own(enum.Enum):\n    ONE = 1\n"
            "    def by(self):\n        return SCALE",
        ),
        environment=_TWO_SCALES,
    ),
    Hazard(
        "import in a function",
        "A function imports a value of another module when it is called.",
        "Imports against circles: quack has a hundred.",
        _modified("from settings import SCALE\n    return x * SCALE", head="import settings"),
        files={"settings.py": _BY_ENVIRONMENT},
        environment=_TWO_SCALES,
    ),
    Hazard(
        "generated function",
        "A function is made from text.",
        "quack's epilogues.",
        _modified(
            "return helper(x)",
            head=f"{_BY_ENVIRONMENT}names = {{'__name__': 'generated'}}\n"
            "exec(f'def helper(x): return x * {SCALE}', names)\nhelper = names['helper']\ndel SCALE, names",
        ),
        environment=_TWO_SCALES,
    ),
    Hazard(
        "field of a number",
        "A number is of a class that is derived from int, and has a field.",
        "Numbers with units.",
        _modified(
            "return x * number.scale",
            head=f"{_BY_ENVIRONMENT}class Number(int):\n    pass\n"
            "number = Number(1)\nnumber.scale = SCALE\ndel SCALE",
        ),
        environment=_TWO_SCALES,
    ),
    Hazard(
        "patch of the DSL",
        "A module puts a function of its own into the DSL, which reads a module-level value.",
        "quack's indexing of tensors, and NVIDIA's operators.",
        _modified("return cute.math.exp2(x)", head="import cutlass.cute as cute\nimport patch"),
        files={
            "patch.py": f"import cutlass.cute as cute\n{_BY_ENVIRONMENT}original = cute.math.exp2\n"
            "def patched(x, *more, **named):\n    return original(x * SCALE, *more, **named)\n"
            "cute.math.exp2 = patched\n"
        },
        environment=_TWO_SCALES,
    ),
    Hazard(
        "inherited attribute",
        "A class gets an attribute of its own that it had from another class.",
        "Stages of one kernel, overridden between two calls.",
        _modified(
            "return x * Scale.by",
            head="class Base:\n    by = 2.0\n\nclass Scale(Base):\n    pass",
            before="Scale.by = 3.0",
        ),
    ),
    Hazard(
        "module in an object",
        "A field of an object is a module, one of whose values is changed.",
        "Kernels that are given a module of settings.",
        _modified(
            "return x * SETTINGS.module.SCALE",
            head="import types\nimport settings\nSETTINGS = types.SimpleNamespace(module=settings)\n"
            "del settings",
            before="SETTINGS.module.SCALE = 3.0",
        ),
        files={"settings.py": "SCALE = 2.0\n"},
    ),
    Hazard(
        "attribute of a helper",
        "An attribute of a function is changed that the kernel calls by its name.",
        "Found in cutlass-aot itself, which described the attributes of arguments alone.",
        _modified(
            "return helper(x)",
            head="def helper(x):\n    return x * helper.scale\n\nhelper.scale = 2.0",
            before="helper.scale = 3.0",
        ),
    ),
    Hazard(
        "default value in place",
        "The default value of a helper is a dictionary, which is changed.",
        "Tables of settings as default values.",
        _modified(
            "return helper(x)",
            head="TABLE = {'by': 2.0}\n\ndef helper(x, table=TABLE):\n    return x * table['by']",
            before="TABLE['by'] = 3.0",
        ),
    ),
    Hazard(
        "field of a dataclass at import",
        "The default of a field is computed when the module is imported; a dataclass with slots does not "
        "have it as an attribute.",
        "Configurations as frozen dataclasses.",
        _modified(
            "return x * Scale().by",
            head=f"{_BY_ENVIRONMENT}import dataclasses\n@dataclasses.dataclass(slots=True)\nclass Scale:\n"
            "    by: float = SCALE\ndel SCALE",
        ),
        environment=_TWO_SCALES,
    ),
    Hazard(
        "structure at import",
        "The size of a field of a `cute.struct` is computed when the module is imported.",
        "SharedStorage at module level, in gated delta nets and NVIDIA's examples.",
        _modified(
            "return x * Storage.size_in_bytes()",
            head=f"{_BY_ENVIRONMENT}import cutlass\nimport cutlass.cute as cute\n@cute.struct\n"
            "class Storage:\n    values: cute.struct.MemRange[cutlass.Float32, int(SCALE) * 32]\ndel SCALE",
        ),
        environment=_TWO_SCALES,
    ),
    Hazard(
        "decorator",
        "A module-level function was decorated with a value that its source does not tell; "
        "`functools.wraps` gives it the name, the module and the source of the function inside.",
        "Found in cutlass-aot itself, when it followed what a function wraps and not what wraps it.",
        _modified(
            "return helper(x)",
            head="""
import functools
import os

def scaled(factor):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(x):
            return function(x) * factor
        return wrapper
    return decorate

@scaled(float(os.environ.get("HAZARD_SCALE", "2")))
def helper(x):
    return x
""",
        ),
        environment=({"HAZARD_SCALE": "2"}, {"HAZARD_SCALE": "3"}),
    ),
    Hazard(
        "package version",
        "A package that a kernel calls is installed in another version.",
        "quack below FlashAttention-4; torch below both.",
        _USES_PACKAGE,
        files=_installed("1.0", 2.0),
        edited={**dict.fromkeys(_installed("1.0", 2.0), ""), **_installed("1.1", 3.0)},
        path=("../site",),
    ),
    Hazard(
        "edited package",
        "A file of an installed package is edited in place; the version is as it was.",
        "Editable installations, patches in containers.",
        _USES_PACKAGE,
        files=_installed("1.0", 2.0),
        edited={_PACKAGE: _package(3.0)},
        path=("../site",),
    ),
    # -- functions --------------------------------------------------------------------------------------
    Hazard(
        "lambdas on two lines",
        "Two lambdas differ in their source alone.",
        "score_mod of FlashAttention.",
        _two("f", "g", head="f = lambda x: x * 2.0\ng = lambda x: x * 3.0"),
    ),
    Hazard(
        "lambdas on one line",
        "Two lambdas stand on one line, so that the source lines of both are the same.",
        "inspect.getsource gives lines.",
        _two("pair[0]", "pair[1]", head="pair = (lambda x: x * 2.0, lambda x: x * 3.0)"),
    ),
    Hazard(
        "closure",
        "Two functions of one source have other values in their closures.",
        "create_softcap_scoremod of FlashAttention-4.",
        _two("scaled(2.0)", "scaled(3.0)", head="def scaled(factor):\n    return lambda x: x * factor"),
    ),
    Hazard(
        "object in a closure",
        "The closure has an object whose repr does not tell its fields.",
        "Keys that are made from repr().",
        _two(
            "scaled(Config(2.0))",
            "scaled(Config(3.0))",
            head="""
class Config:
    def __init__(self, factor):
        self.factor = factor
    def __repr__(self):
        return "Config()"

def scaled(config):
    return lambda x: x * config.factor
""",
        ),
    ),
    Hazard(
        "tensor in a closure",
        "A trace reads an element of a live tensor that a closure has.",
        "Tensors as keys: FlashAttention issue 2635.",
        _two(
            "scaled(2.0)",
            "scaled(3.0)",
            head="""
import torch

def scaled(factor):
    table = torch.zeros(4096)
    table[2048] = factor
    return lambda x: x * table[2048].item()
""",
        ),
    ),
    Hazard(
        "default value",
        "Two functions of one source have other default values.",
        "Factories that capture by default values.",
        _two(
            "scaled(2.0)",
            "scaled(3.0)",
            head="""
def scaled(factor):
    def modify(x, factor=factor):
        return x * factor
    return modify
""",
        ),
    ),
    Hazard(
        "default value at import",
        "The default value of a module-level function is computed when its module is imported.",
        "Defaults that come from the environment.",
        _modified(
            "return helper(x)",
            head="""
import os

def helper(x, factor=float(os.environ.get("HAZARD_SCALE", "2"))):
    return x * factor
""",
        ),
        environment=({"HAZARD_SCALE": "2"}, {"HAZARD_SCALE": "3"}),
    ),
    Hazard(
        "function attribute",
        "An attribute of a function that is passed decides the code.",
        "__vec_size__ of FlashAttention's score_mod.",
        _argument(
            "values[thread] = value(values[thread]) * value.__vec_size__",
            ("with_size(2.0)", "with_size(3.0)"),
        )
        + """
def with_size(size):
    def modify(x):
        return x
    modify.__vec_size__ = size
    return modify
""",
    ),
    # -- arguments --------------------------------------------------------------------------------------
    Hazard(
        "1 and True",
        "1 and True are equal, and have one hash.",
        "Keys that are tuples of arguments.",
        _argument(_KIND, ("1", "True")),
    ),
    Hazard(
        "1 and 1.0",
        "1 and 1.0 are equal, and have one hash.",
        "Keys that are tuples of arguments.",
        _argument(_KIND, ("1", "1.0")),
    ),
    Hazard(
        "1 and True in one process",
        "The same, where entries are found by a dictionary in memory first.",
        "Dictionaries before a cache on disk.",
        _argument(_KIND, ("1", "True")),
        steps=Steps.ONE_PROCESS,
    ),
    Hazard(
        "1 and 1.0 in one process",
        "The same, where entries are found by a dictionary in memory first.",
        "Dictionaries before a cache on disk.",
        _argument(_KIND, ("1", "1.0")),
        steps=Steps.ONE_PROCESS,
    ),
    Hazard(
        "sign of zero in one process",
        "0.0 and -0.0 are equal; adding them is not the same.",
        "Dictionaries before a cache on disk.",
        _argument("values[thread] = values[thread] + value", ("0.0", "-0.0")),
        steps=Steps.ONE_PROCESS,
    ),
    Hazard(
        "None and absent",
        "None for an argument that has another default value.",
        "Optional bias and masks.",
        """
import cutlass
import cutlass.cute as cute
from common import stream, tensor, TVM_FFI

@cute.kernel
def kernel(values: cute.Tensor, bias: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    if cutlass.const_expr(bias is not None):
        values[thread] = values[thread] + bias

@cute.jit
def launch(values: cute.Tensor, stream, bias: cutlass.Constexpr = 2.0):
    kernel(values, bias).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

def compile_it(**keywords):
    return cute.compile(launch, tensor(), stream(), **keywords, options=TVM_FFI)

def first():
    return compile_it, (), {"bias": None}

def second():
    return compile_it, (), {}
""",
    ),
    Hazard(
        "symbols",
        "One symbolic extent in two tensors, against two symbols of the same kind.",
        "SymInt identity.",
        """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_tensor
from common import stream, TVM_FFI

@cute.kernel
def kernel(a: cute.Tensor, b: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    a[thread] = b[thread] + a.shape[0] + b.shape[0]

@cute.jit
def launch(a: cute.Tensor, b: cute.Tensor, stream):
    kernel(a, b).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

def compile_it(a, b):
    tensors = [make_fake_tensor(cutlass.Int32, (extent,), (1,)) for extent in (a, b)]
    return cute.compile(launch, *tensors, stream(), options=TVM_FFI)

def first():
    extent = cute.sym_int32()
    return compile_it, (extent, extent), {}

def second():
    return compile_it, (cute.sym_int32(), cute.sym_int32()), {}
""",
    ),
    Hazard(
        "dtype",
        "A tensor of another element type.",
        "Every key has it; the suite checks that.",
        _tensors("dtype=cutlass.Float32", "dtype=cutlass.Int32"),
    ),
    Hazard(
        "numbers of a shape",
        "Numbers in a tuple that is annotated as a shape are compiled in; in one that is annotated as a "
        "tuple they are passed at each call.",
        "Found in cutlass-aot itself, which took them for passed.",
        _annotated("cute.Shape", "cute.size(value)", ("(2, 3)", "(2, 4)")),
    ),
    Hazard(
        "annotation at import",
        "The type that a number is converted to is an annotation, which is computed when the module is "
        "imported.",
        "Accumulator types by a module-level name.",
        _annotated(
            "DTYPE", "value", ("2", "2"),
            head="import os\nFIRST = os.environ.get('HAZARD_SCALE') == '2'\n"
            "DTYPE = cutlass.Float32 if FIRST else cutlass.Int32",
        ),
        environment=({"HAZARD_SCALE": "2"}, {"HAZARD_SCALE": "3"}),
    ),
    Hazard("stride", "A tensor of another stride.", "As above.", _tensors("stride=1", "stride=2")),
    Hazard(
        "alignment",
        "A tensor of another alignment.",
        "Divisibility that a key leaves out.",
        _tensors("alignment=4", "alignment=16"),
    ),
    Hazard(
        "field of an instance",
        "A field of the callable object is another one.",
        "Parameters of code generation that a key lacked: FlashInfer issue 4214.",
        """
import cutlass.cute as cute
from common import kernel, stream, tensor, TVM_FFI

class Scaled:
    def __init__(self, factor):
        self.factor = factor

    @cute.jit
    def __call__(self, values: cute.Tensor, stream):
        factor = self.factor
        kernel(values, lambda x: x * factor).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

def compile_it(factor):
    return cute.compile(Scaled(factor), tensor(), stream(), options=TVM_FFI)

def first():
    return compile_it, (2.0,), {}

def second():
    return compile_it, (3.0,), {}
""",
    ),
    Hazard(
        "dynamic scalar",
        "A scalar that is passed at each call has another value.",
        "Scales that are compiled with the value of the first call.",
        """
import cutlass
import cutlass.cute as cute
from common import stream, tensor, TVM_FFI

@cute.kernel
def kernel(values: cute.Tensor, factor: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    values[thread] = values[thread] * factor

@cute.jit
def launch(values: cute.Tensor, factor: cutlass.Float32, stream):
    kernel(values, factor).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

def compile_it(factor):
    return cute.compile(launch, tensor(), cutlass.Float32(factor), stream(), options=TVM_FFI)

def first():
    return compile_it, (2.0,), {}

def second():
    return compile_it, (3.0,), {}
""",
        expected=Expected.ONE,
    ),
    Hazard(
        "raw address",
        "A pointer argument has another address.",
        "A raw address in a pointer placeholder made a key new in every process.",
        """
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr
from common import stream, tensor, TVM_FFI

@cute.kernel
def kernel(values: cute.Tensor, others: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    values[thread] = others[thread] * 2.0

@cute.jit
def launch(values: cute.Tensor, pointer: cute.Pointer, stream):
    kernel(values, cute.make_tensor(pointer, cute.make_layout(32))).launch(
        grid=(1, 1, 1), block=(32, 1, 1), stream=stream
    )

def compile_it(address):
    pointer = make_ptr(cutlass.Float32, address, cute.AddressSpace.gmem, assumed_align=16)
    return cute.compile(launch, tensor(), pointer, stream(), options=TVM_FFI)

def first():
    return compile_it, (4096,), {}

def second():
    return compile_it, (8192,), {}
""",
        expected=Expected.ONE_OR_REFUSED,
    ),
    # -- how it is compiled -----------------------------------------------------------------------------
    Hazard(
        "option",
        "A compile option has another value.",
        "Keys that leave the options out.",
        _options("--enable-tvm-ffi --opt-level 3", "--enable-tvm-ffi --opt-level 0"),
    ),
    Hazard(
        "option order",
        "The same options in another order.",
        "Options that are compared as text.",
        _options("--enable-tvm-ffi --opt-level 2", "--opt-level 2 --enable-tvm-ffi"),
        expected=Expected.ONE,
    ),
    Hazard(
        "arch",
        "The same program for another architecture.",
        "quack: an object for sm_90a was loaded for sm_100a; attention-gym issue 330.",
        _SAME,
        environment=({"CUTE_DSL_ARCH": "sm_90a"}, {"CUTE_DSL_ARCH": "sm_100a"}),
        fresh=True,
    ),
    Hazard(
        "SM count",
        "HardwareInfo tells another number of multiprocessors, which sizes a persistent grid.",
        "Two GPU models of one architecture.",
        """
import cutlass
import cutlass.cute as cute
from cutlass.utils import HardwareInfo
from common import kernel, stream, tensor, TVM_FFI

def modify(x):
    return x * 2.0

@cute.jit
def launch(values: cute.Tensor, stream):
    count = HardwareInfo().get_device_multiprocessor_count()
    kernel(values, modify).launch(grid=(count, 1, 1), block=(32, 1, 1), stream=stream)

def compile_it():
    return cute.compile(launch, tensor(), stream(), options=TVM_FFI)

def first():
    return compile_it, (), {}

second = first
""",
        environment=({SM_COUNT: "132"}, {SM_COUNT: "78"}),
    ),
    # -- what should change nothing ---------------------------------------------------------------------
    Hazard(
        "another process",
        "The same program in two processes; an argument is an object without a repr of its own.",
        "Process addresses as keys: b12x issue 41.",
        _argument("values[thread] = values[thread] * value.factor", ("Config()", "Config()"))
        + "\nclass Config:\n    def __init__(self):\n        self.factor = 2.0\n",
        expected=Expected.ONE,
        fresh=True,
    ),
    Hazard(
        "closure in another process",
        "The same, where a closure has the object.",
        "Closures whose cells are keyed by repr().",
        _two(
            "scaled(Config())",
            "scaled(Config())",
            head="""
class Config:
    def __init__(self):
        self.factor = 2.0

def scaled(config):
    return lambda x: x * config.factor
""",
        ),
        expected=Expected.ONE,
        fresh=True,
    ),
    Hazard(
        "hash seed",
        "A set of text is in another order.",
        "PYTHONHASHSEED.",
        _argument(
            "values[thread] = values[thread] * float(len(value))",
            ('frozenset(["alpha", "beta", "gamma", "delta"])',) * 2,
        ),
        expected=Expected.ONE,
        environment=({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}),
        fresh=True,
    ),
    # -- entries ----------------------------------------------------------------------------------------
    Hazard(
        "killed writer",
        "The process is killed half-way through writing the object.",
        "Partial objects: FlashAttention issue 2774.",
        _SAME,
        expected=Expected.RECOVERED,
        steps=Steps.KILLED,
    ),
    Hazard(
        "damaged entry",
        "Half of the object is lost after it was written.",
        "Full disks, machines that lose power.",
        _SAME,
        expected=Expected.RECOVERED,
        steps=Steps.DAMAGED,
    ),
    Hazard(
        "two writers",
        "Two processes compile the same at once.",
        "Workers that start together.",
        _SAME,
        expected=Expected.BOTH,
        steps=Steps.AT_ONCE,
    ),
)  # fmt: skip
"""Every hazard, in the order of the table."""
