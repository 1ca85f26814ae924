"""Keys of requests follow what programs change beside arguments: scripts, closures, defaults, objects."""

from __future__ import annotations

import json

import pytest

from tests.support.forks import Forks

pytestmark = pytest.mark.compile


_KEYS = """
import json, os, sys
import cutlass, cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.request import Surroundings, request_of

@cute.kernel
def kernel(values: cute.Tensor, modify: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    values[thread] = modify(values[thread])

@cute.jit
def launch(values: cute.Tensor, modify: cutlass.Constexpr, stream):
    kernel(values, modify).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

def key(modify):
    values = make_fake_tensor(cutlass.Float32, (cute.sym_int32(),), (1,))
    arguments = (launch, values, modify, make_fake_stream(use_tvm_ffi_env_stream=True))
    surroundings = Surroundings(lambda target: {"sm_count": 132}, lambda target, numbers: {})
    try:
        return request_of(cute.compile, arguments, {"options": "--enable-tvm-ffi"}, surroundings).digest
    except RequestError as error:
        return f"refused: {error}"

import program
print(json.dumps([key(modify) for modify in program.keyed()]))
"""


@pytest.fixture(scope="module")
def processes():
    """Two, of different addresses and hash seeds; torch is for what uses its types."""
    begin = "import cutlass.cute.runtime, torch"
    both = Forks(begin, CUTE_DSL_ARCH="sm_90a"), Forks(begin, CUTE_DSL_ARCH="sm_90a")
    yield both
    for process in both:
        process.close()


@pytest.fixture(scope="module")
def keys(processes):
    """The keys of a program's functions, in one of the processes."""

    def found(folder, program, before="", process=0, **environment):
        (folder / "keys.py").write_text(before + _KEYS)
        (folder / "program.py").write_text(program)
        return json.loads(processes[process].run(folder / "keys.py", **environment))

    return found


CHANGES = {
    "a method of a class": (
        "class Scale:\n    def by(self, x):\n        return x * 2.0\n"
        "    def other(self, x):\n        return x * 3.0",
        "Scale().by(x)",
        "Scale.by = Scale.other",
    ),
    "a private attribute of a class": ("class Scale:\n    _by = 2.0", "x * Scale._by", "Scale._by = 3.0"),
    "a private module-level value": ("__scale = 2.0", "x * __scale", 'globals()["__scale"] = 3.0'),
    "a module-level object": (
        "import types\nclass Scale:\n    pass\nSCALE = Scale()\nSCALE.by = 2.0",
        "x * SCALE.by",
        "SCALE.by = 3.0",
    ),
    "a namespace": ("import types\nSCALE = types.SimpleNamespace(by=2.0)", "x * SCALE.by", "SCALE.by = 3.0"),
    "an entry of a table of functions": (
        'def two(x):\n    return x * 2.0\ndef three(x):\n    return x * 3.0\nTABLE = {"x": two}',
        'TABLE["x"](x)',
        'TABLE["x"] = three',
    ),
    "a long table": ("TABLE = [2.0] * 100", "x * TABLE[80]", "TABLE[80] = 3.0"),
    "an argument of a partial": (
        "import functools\ndef by(x, factor):\n    return x * factor\n"
        "helper = functools.partial(by, factor=2.0)",
        "helper(x)",
        "global helper; helper = functools.partial(by, factor=3.0)",
    ),
    "the instance of a method": (
        "class Scale:\n    def __init__(self, factor):\n        self.factor = factor\n"
        "    def by(self, x):\n        return x * self.factor\nhelper = Scale(2.0).by",
        "helper(x)",
        "global helper; helper = Scale(3.0).by",
    ),
    "a class that was made": (
        "import dataclasses\ndef made(factor):\n"
        "    return dataclasses.make_dataclass('Scale', [('factor', float, factor)])\n"
        "Scale_ = made(2.0)",
        "x * Scale_().factor",
        "global Scale_; Scale_ = made(3.0)",
    ),
    "a class that was made, as a class has it": (
        "class Scale:\n    pass\ndef made(factor):\n"
        "    return type('Parameters', (), {'factor': factor})\n"
        "Scale.Parameters = made(2.0)",
        "x * Scale.Parameters().factor",
        "Scale.Parameters = made(3.0)",
    ),
    "what a decorator's function reads": (
        "import functools\nFACTOR = 2.0\ndef scaled(function):\n    @functools.wraps(function)\n"
        "    def wrapper(x):\n        return function(x) * FACTOR\n    return wrapper\n"
        "@scaled\ndef helper(x):\n    return x",
        "helper(x)",
        "global FACTOR; FACTOR = 3.0",
    ),
    "what a decorator was given": (
        "import functools\ndef scaled(factor):\n    def decorate(function):\n"
        "        @functools.wraps(function)\n        def wrapper(x):\n"
        "            return function(x) * factor\n        return wrapper\n    return decorate\n"
        "def plain(x):\n    return x\nhelper = scaled(2.0)(plain)",
        "helper(x)",
        "global helper; helper = scaled(3.0)(plain)",
    ),
    "a field of a decorator that is an object": (
        "import functools\nclass Scaled:\n    def __init__(self, function, factor):\n"
        "        functools.update_wrapper(self, function)\n        self.factor = factor\n"
        "    def __call__(self, x):\n        return self.__wrapped__(x) * self.factor\n"
        "def plain(x):\n    return x\nhelper = Scaled(plain, 2.0)",
        "helper(x)",
        "global helper; helper = Scaled(plain, 3.0)",
    ),
    "a lambda": (
        "helper = lambda x: x * 2.0",
        "helper(x)",
        "global helper; helper = lambda x: x * 3.0",
    ),
    "what a function in a table reads": (
        'F = 2.0\ndef two(x):\n    return x * F\nTABLE = {"x": two}',
        'TABLE["x"](x)',
        "global F; F = 3.0",
    ),
    "what a method of a module-level object reads": (
        "F = 2.0\nclass Scale:\n    def by(self, x):\n        return x * F\nSCALE = Scale()",
        "SCALE.by(x)",
        "global F; F = 3.0",
    ),
    "what a method of an enumeration reads": (
        "import enum\nF = 2.0\nclass Mode(enum.Enum):\n    A = 1\n    def by(self):\n        return F",
        "x * Mode.A.by()",
        "global F; F = 3.0",
    ),
    "a field of a member of an enumeration": (
        "import enum\nclass Mode(enum.Enum):\n    A = 1\nMode.A.by = 2.0\nMODE = Mode.A",
        "x * MODE.by",
        "MODE.by = 3.0",
    ),
    "what a cached property reads": (
        "import functools\nF = 2.0\nclass Scale:\n    @functools.cached_property\n"
        "    def by(self):\n        return F",
        "x * Scale().by",
        "global F; F = 3.0",
    ),
    "what a method by type reads": (
        "import functools\nF = 2.0\nclass Scale:\n    @functools.singledispatchmethod\n"
        "    def by(self, y):\n        return y * F",
        "Scale().by(x)",
        "global F; F = 3.0",
    ),
    "what a partial method reads": (
        "import functools\nF = 2.0\nclass Scale:\n    def _by(self, y):\n        return F * y\n"
        "    by = functools.partialmethod(_by, 1.0)",
        "x * Scale().by()",
        "global F; F = 3.0",
    ),
    "what a descriptor reads": (
        "F = 2.0\nclass By:\n    def __get__(self, instance, owner):\n        return F\n"
        "class Scale:\n    by = By()",
        "x * Scale.by",
        "global F; F = 3.0",
    ),
    "the arguments of a script": (
        "import argparse\nARGS = argparse.Namespace(by=2.0)",
        "x * ARGS.by",
        "ARGS.by = 3.0",
    ),
    "an attribute that was not there": (
        "import types, sys\nsettings = sys.modules[__name__]",
        "x * getattr(settings, 'FACTOR', 2.0)",
        "settings.FACTOR = 3.0",
    ),
    "an array, in place": ("import numpy\nT = numpy.ones(4)", "x * float(T[0])", "T[0] = 3.0"),
    "a class that was made by exec": (
        "def made(factor):\n    names = {}\n    exec(f'class Scale: by = {factor}', names)\n"
        "    return names['Scale']\nScale_ = made(2.0)",
        "x * Scale_.by",
        "global Scale_; Scale_ = made(3.0)",
    ),
    "a function that was made by exec": (
        "def made(factor):\n    names = {'__name__': 'made'}\n"
        "    exec(f'def helper(x): return x * {factor}', names)\n    return names['helper']\n"
        "helper = made(2.0)",
        "helper(x)",
        "global helper; helper = made(3.0)",
    ),
    "an attribute of a class that was made": (
        "def made():\n    class Scale:\n        by = 2.0\n    return Scale\nScale_ = made()",
        "x * Scale_.by",
        "Scale_.by = 3.0",
    ),
    "an attribute of a function": (
        "def helper(x):\n    return x * helper.by\nhelper.by = 2.0",
        "helper(x)",
        "helper.by = 3.0",
    ),
    "an attribute that a function did not have": (
        "def helper(x):\n    return x * getattr(helper, 'by', 2.0)",
        "helper(x)",
        "helper.by = 3.0",
    ),
    "a default value, in place": (
        "CONFIG = {'by': 2.0}\ndef helper(x, config=CONFIG):\n    return x * config['by']\ndel CONFIG",
        "helper(x)",
        "helper.__defaults__[0]['by'] = 3.0",
    ),
    "default values": (
        "def helper(x, by=2.0):\n    return x * by",
        "helper(x)",
        "helper.__defaults__ = (3.0,)",
    ),
    "default values by name, in place": (
        "def helper(x, *, by=2.0):\n    return x * by",
        "helper(x)",
        "helper.__kwdefaults__['by'] = 3.0",
    ),
    "an object as a default value": (
        "class Config:\n    def __init__(self):\n        self.by = 2.0\n"
        "def helper(x, config=Config()):\n    return x * config.by",
        "helper(x)",
        "helper.__defaults__[0].by = 3.0",
    ),
    "a variable of a decorator, by another of its functions": (
        "import functools\ndef scaled(function):\n    by = 2.0\n    @functools.wraps(function)\n"
        "    def wrapper(x):\n        return function(x) * by\n"
        "    def set_by(value):\n        nonlocal by\n        by = value\n"
        "    wrapper.set_by = set_by\n    return wrapper\n@scaled\ndef helper(x):\n    return x",
        "helper(x)",
        "helper.set_by(3.0)",
    ),
    "the default of a dictionary": (
        "import collections\nTABLE = collections.defaultdict(lambda: 2.0)",
        "x * TABLE['x']",
        "TABLE.default_factory = lambda: 3.0",
    ),
    "an attribute that a class had from another": (
        "class Base:\n    by = 2.0\nclass Scale(Base):\n    pass",
        "x * Scale.by",
        "Scale.by = 3.0",
    ),
    "a method that a class had from another": (
        "class Base:\n    def by(self):\n        return 2.0\nclass Scale(Base):\n    pass\n"
        "def three(self):\n    return 3.0",
        "x * Scale().by()",
        "Scale.by = three",
    ),
    "a value that a module did not have": (
        "",
        "x * globals().get('FACTOR', 2.0)",
        "global FACTOR; FACTOR = 3.0",
    ),
    "a value of a module in a table": (
        "import importlib\nTABLE = {'x': importlib.import_module('factors')}",
        "x * TABLE['x'].BY",
        "TABLE['x'].BY = 3.0",
    ),
    "a value of a module as a class has it": (
        "import importlib\nclass Scale:\n    settings = importlib.import_module('other_factors')",
        "x * Scale.settings.BY",
        "Scale.settings.BY = 3.0",
    ),
    "an object of the DSL": (
        "from cutlass import pipeline\nGROUP = pipeline.CooperativeGroup(pipeline.Agent.Thread, 32)",
        "x * GROUP.size",
        "global GROUP; GROUP = pipeline.CooperativeGroup(pipeline.Agent.Thread, 64)",
    ),
    "two properties": (
        "class Scale:\n    @property\n    def two(self):\n        return 2.0\n"
        "    @property\n    def three(self):\n        return 3.0",
        "x * Scale().two",
        "Scale.two, Scale.three = Scale.three, Scale.two",
    ),
    "a member that is asked for its field": (
        "import enum\nclass Mode(enum.Enum):\n    A = 1\nMode.A.by = 2.0",
        "x * Mode.A.by",
        "Mode.A.by = 3.0",
    ),
    "an attribute of a metaclass": (
        "class Meta(type):\n    by = 2.0\nclass Scale(metaclass=Meta):\n    pass",
        "x * Scale.by",
        "Meta.by = 3.0",
    ),
    "a number of two underscores": ("__by__ = 2.0", "x * __by__", "globals()['__by__'] = 3.0"),
    "a chain of dictionaries": (
        "import collections\nTABLE = collections.ChainMap({'x': 2.0})",
        "x * TABLE['x']",
        "TABLE.maps[0]['x'] = 3.0",
    ),
    "a queue": ("import collections\nQUEUE = collections.deque([2.0])", "x * QUEUE[0]", "QUEUE[0] = 3.0"),
    "what is registered later": (
        "import functools\n@functools.singledispatch\ndef of(y):\n    return 2.0\n"
        "def three(y):\n    return 3.0",
        "x * of(1)",
        "of.register(int, three)",
    ),
}


@pytest.fixture(scope="module")
def changed(keys, tmp_path_factory):
    """The keys before and after each change, from one process."""
    folder = tmp_path_factory.mktemp("changes")
    names, lines = [], ["import importlib"]
    for number, (head, body, change) in enumerate(CHANGES.values()):
        text = f"{head}\ndef modify(x):\n    return {body}\ndef change():\n    {change}\n"
        (folder / f"change{number}.py").write_text(text)
        names.append(f"change{number}")
    for name in ("factors", "other_factors"):
        (folder / f"{name}.py").write_text("BY = 2.0\n")
    lines += [
        "def keyed():",
        f"    for name in {names!r}:",
        "        module = importlib.import_module(name)",
        "        yield module.modify",
        "        module.change()",
        "        yield module.modify",
    ]
    found = keys(folder, "\n".join(lines))
    return dict(zip(CHANGES, zip(found[::2], found[1::2], strict=True), strict=True))


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_program_changes_changes_the_key(changed, what):
    before, after = changed[what]
    assert before != after
    assert not before.startswith("refused")
    assert not after.startswith("refused")


def test_a_builtin_method_is_described_with_its_object(keys, tmp_path):
    two, three, again, attribute = keys(
        tmp_path,
        "class Two:\n    __slots__ = ('__by', 'other')\n"
        "    def __init__(self, by):\n        self.__by = by\n        self.other = 1\n"
        "def with_closure(thing):\n    return lambda x: x * thing\n"
        "def keyed():\n"
        "    yield {1: 2.0}.get\n"
        "    yield {1: 3.0}.get\n"
        "    yield with_closure(Two(2.0))\n"
        "    yield with_closure(Two(3.0))\n",
    )
    assert two != three
    assert again != attribute
    assert not any(key.startswith("refused") for key in (two, three, again, attribute))


def test_a_dataclass_of_a_function_is_described_by_its_fields(keys, tmp_path):
    """Its methods have no source: dataclass made them."""
    two, three, default = keys(
        tmp_path,
        "import dataclasses\n"
        "def made(default):\n"
        "    @dataclasses.dataclass(frozen=True)\n"
        "    class Config:\n"
        "        by: float = default\n"
        "        more: int = 1\n"
        "    return Config\n"
        "def with_closure(config):\n    return lambda x: x * config.by\n"
        "def keyed():\n"
        "    kind = made(4.0)\n"
        "    yield with_closure(kind(2.0))\n"
        "    yield with_closure(kind(3.0))\n"
        "    yield with_closure(made(5.0)(2.0))\n",
    )
    assert not any(key.startswith("refused") for key in (two, three, default))
    assert len({two, three, default}) == 3


def test_the_module_of_a_made_dataclass_is_not_in_a_key(keys, tmp_path):
    """Python 3.12 gives it that of its caller, 3.11 `types`."""
    one, other, third = keys(
        tmp_path,
        "import dataclasses, sys\n"
        "def made(module):\n"
        "    kind = dataclasses.make_dataclass('Scale', [('factor', float, 2.0)])\n"
        "    kind.__module__ = module\n"
        "    return kind\n"
        "class Kernel:\n    pass\n"
        "def modify(x):\n    return x * Kernel.Scale().factor\n"
        "def keyed():\n"
        "    for module in 'types', __name__:\n"
        "        Kernel.Scale = made(module)\n"
        "        yield modify\n"
        "    Kernel.Scale = made('types')\n"
        "    Kernel.Scale.factor = 3.0\n"
        "    yield modify\n",
    )
    assert one == other != third
    assert not one.startswith("refused")


def test_a_function_around_an_object_is_followed(keys, tmp_path):
    """Its `__wrapped__` is not a function."""
    two, three = keys(
        tmp_path,
        "import functools\n"
        "FACTOR = 2.0\n"
        "@functools.lru_cache\ndef inner():\n    return FACTOR\n"
        "@functools.wraps(inner)\ndef outer():\n    return inner()\n"
        "def modify(x):\n    return x * outer()\n"
        "def keyed():\n"
        "    global FACTOR\n"
        "    yield modify\n"
        "    FACTOR = 3.0\n"
        "    yield modify\n",
    )
    assert two != three
    assert not two.startswith("refused")


def test_what_a_program_raises_is_a_refusal(keys, tmp_path):
    (refused,) = keys(
        tmp_path,
        "class Modify:\n"
        "    def __call__(self, x):\n        return x\n"
        "    @property\n    def __dict__(self):\n        raise ZeroDivisionError('no fields')\n"
        "def keyed():\n    yield Modify()\n",
    )
    assert refused.startswith("refused: ")
    assert "ZeroDivisionError: no fields" in refused


def test_what_a_decorator_remembers_is_not_in_a_key(keys, tmp_path):
    """As a package's own cache of what it compiled, which grows."""
    before, after = keys(
        tmp_path,
        "import functools\n"
        "def cached(function):\n"
        "    cache, calls = {}, 0\n"
        "    @functools.wraps(function)\n"
        "    def wrapper(x):\n        nonlocal calls\n        calls += 1\n"
        "        return cache.setdefault(x, function(x))\n"
        "    wrapper.cache = cache\n"
        "    return wrapper\n"
        "@cached\ndef compiled(x):\n    return lambda: x\n"
        "def modify(x):\n    return x * 2.0 if True else compiled(x)\n"
        "def keyed():\n"
        "    yield modify\n"
        "    compiled(1)\n"
        "    from cutlass_aot.programs.describe import follow_code\n"
        "    follow_code._known.clear()\n"
        "    yield modify\n",
    )
    assert before == after
    assert not before.startswith("refused")


# What a module decides when it is imported, by an environment variable that only its top level reads.
_AT_IMPORT = {
    "which definition a name has": (
        "if FIRST:\n    def change(x): return x * 2\nelse:\n    def change(x): return x * 3"
    ),
    "which method a class has": (
        "class Own:\n    if FIRST:\n        def __call__(self, x): return x * 2\n"
        "    else:\n        def __call__(self, x): return x * 3\n\n\ndef change(x): return Own()(x)"
    ),
    "a type of the DSL": (
        "dtype = cutlass.Float16 if FIRST else cutlass.BFloat16\ndef change(x): return dtype(x)"
    ),
    "a function of the DSL": (
        "function = cute.math.sin if FIRST else cute.math.cos\ndef change(x): return function(x)"
    ),
    "a module": "module = cute.math if FIRST else cute.arch\ndef change(x): return module.exp2(x)",
    "a builtin": "combined = operator.add if FIRST else operator.mul\ndef change(x): return combined(x, x)",
    "a number of the DSL": "factor = cutlass.Float32(2 if FIRST else 3)\ndef change(x): return x * factor",
    "a dtype of torch": (
        "dtype = torch.float16 if FIRST else torch.float32\ndef change(x): return x * dtype.itemsize"
    ),
    "an array": "factors = numpy.array([2 if FIRST else 3])\ndef change(x): return x * factors[0]",
    "a path": "path = pathlib.Path('a' if FIRST else 'bc')\ndef change(x): return x * len(str(path))",
    "a fraction": "half = fractions.Fraction(1, 2 if FIRST else 3)\ndef change(x): return x * float(half)",
    "a deque": "queue = collections.deque([2 if FIRST else 3])\ndef change(x): return x * queue[0]",
    "a context variable": (
        "factor = contextvars.ContextVar('factor', default=2 if FIRST else 3)\n"
        "def change(x): return x * factor.get()"
    ),
    "a method of a dictionary": "get = {'x': 2 if FIRST else 3}.get\ndef change(x): return x * get('x')",
    "a value of an enumeration": (
        "class Factor(enum.Enum):\n    ONE = 2 if FIRST else 3\n\n\n"
        "def change(x): return x * Factor.ONE.value"
    ),
    "a function as a default value": (
        "def two(): return 2\ndef three(): return 3\n"
        "def change(x, factor=two if FIRST else three): return x * factor()"
    ),
    "a number of the DSL as a default value": (
        "def change(x, factor=cutlass.Float32(2 if FIRST else 3)): return x * factor"
    ),
    "a function that a decorator was given": (
        "def two(): return 2\ndef three(): return 3\ndef by(factor):\n    def decorate(f):\n"
        "        @functools.wraps(f)\n        def call(x): return f(x) * factor()\n        return call\n"
        "    return decorate\n@by(two if FIRST else three)\ndef change(x): return x"
    ),
    "a closure within a cache": (
        "def made(factor):\n    def inner(): return factor\n    return functools.lru_cache(inner)\n\n\n"
        "factor = made(2 if FIRST else 3)\ndef change(x): return x * factor()"
    ),
    "what is registered for a type": (
        "@functools.singledispatch\ndef of(x): return 1\ndef two(x): return 2\ndef three(x): return 3\n"
        "of.register(int, two if FIRST else three)\ndef change(x): return x * of(1)"
    ),
    "the arguments of a script": (
        "ARGS = argparse.Namespace(by=2 if FIRST else 3)\ndef change(x): return x * ARGS.by"
    ),
    "a field of a number": (
        "class Number(int): pass\nnumber = Number(1)\nnumber.by = 2 if FIRST else 3\n"
        "def change(x): return x * number.by"
    ),
    "a default of a dataclass with slots": (
        "@dataclasses.dataclass(slots=True)\nclass Scale:\n    by: float = 2.0 if FIRST else 3.0\n"
        "def change(x): return x * Scale().by"
    ),
    "what makes a default of a dataclass": (
        "def two(): return 2.0\ndef three(): return 3.0\n@dataclasses.dataclass\nclass Scale:\n"
        "    by: float = dataclasses.field(default_factory=two if FIRST else three)\n"
        "def change(x): return x * Scale().by"
    ),
    "the arguments of a partial method": (
        "class Scale:\n    def _by(self, y): return y\n"
        "    by = functools.partialmethod(_by, 2.0 if FIRST else 3.0)\n"
        "def change(x): return x * Scale().by()"
    ),
    "the type of a field of a structure": (
        "@cute.struct\nclass Storage:\n"
        "    values: cute.struct.MemRange[cutlass.Float32, 64 if FIRST else 128]\n"
        "def change(x): return x * Storage.size_in_bytes()"
    ),
    "a value that is named by text": (
        "FACTOR = int('2' if FIRST else '3')\ndef change(x): return x * globals()['FACTOR']"
    ),
}
_IMPORTS = (
    "import argparse, collections, contextvars, dataclasses, enum, fractions, functools, operator, os\n"
    "import pathlib, cutlass, cutlass.cute as cute, numpy, torch\nFIRST = os.environ['DECIDES'] == '1'\n"
)


def test_what_a_module_decides_when_it_is_imported_is_in_the_key(keys, tmp_path):
    for index, body in enumerate(_AT_IMPORT.values()):
        # FIRST itself is not part of the code that is reached.
        (tmp_path / f"decided_{index}.py").write_text(f"{_IMPORTS}{body}\ndel FIRST\n")
    modules = [f"decided_{index}" for index in range(len(_AT_IMPORT))]
    program = (
        f"import {', '.join(modules)}\ndef keyed(): return [{', '.join(f'{m}.change' for m in modules)}]\n"
    )
    found = []
    for process, decides in ((0, "1"), (0, "0"), (1, "1")):
        found.append(keys(tmp_path, program, process=process, DECIDES=decides))
    one, other, again = found
    assert one == again
    assert not [key for key in one + other if key.startswith("refused")]
    assert [name for name, a, b in zip(_AT_IMPORT, one, other, strict=True) if a == b] == []


def test_code_that_asks_for_subclasses_is_refused(keys, tmp_path):
    program = (
        "class Base: pass\ndef change(x): return x * len(Base.__subclasses__())\n"
        "def keyed(): return [change]\n"
    )
    (key,) = keys(tmp_path, program)
    assert "asks for subclasses" in key


_BY_ENVIRONMENT = "import os\nFACTOR = float(os.environ['FACTOR'])\n"


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("from .config import FACTOR", "FACTOR"),
        ("from package.config import FACTOR", "FACTOR"),
        ("import package.config", "package.config.FACTOR"),
        ("from . import config", "config.FACTOR"),
        ("import importlib; config = importlib.import_module('package.config')", "config.FACTOR"),
    ],
)
@pytest.mark.parametrize("first", ["", "import package.config"])
def test_what_a_function_imports_is_in_the_key(keys, tmp_path, statement, value, first):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(f"{first}\n")
    (package / "config.py").write_text(_BY_ENVIRONMENT)
    (package / "ops.py").write_text(f"def change(x):\n    {statement}\n    return x * {value}\n")
    found = []
    program = "import package\nfrom package.ops import change\ndef keyed(): return [change]\n"
    for process, factor in ((0, "2"), (0, "3"), (1, "2")):
        found += keys(tmp_path, program, process=process, FACTOR=factor)
    one, other, again = found
    if "import_module" in statement and not first:
        return  # Before the trace imports it nothing says that it will; the audit refuses it then.
    assert one == again != other


def test_what_a_patch_of_the_dsl_reads_is_in_the_key(keys, tmp_path):
    (tmp_path / "patch.py").write_text(
        f"{_BY_ENVIRONMENT}import cutlass.cute as cute\noriginal = cute.math.exp2\n"
        "def patched(x, *more, **named): return original(x * FACTOR, *more, **named)\n"
        "cute.math.exp2 = patched\n"
    )
    (tmp_path / "ops.py").write_text("import cutlass.cute as cute\ndef change(x): return cute.math.exp2(x)\n")
    found = []
    program = "import patch\nfrom ops import change\ndef keyed(): return [change]\n"
    for process, factor in ((0, "2"), (0, "3"), (1, "2")):
        found += keys(tmp_path, program, process=process, FACTOR=factor)
    assert found[0] == found[2] != found[1]


def test_a_patch_that_wraps_what_the_dsl_has_is_in_the_key(keys, tmp_path):
    (tmp_path / "patch.py").write_text(
        "import functools, cutlass.cute as cute\noriginal = cute.math.exp2\n@functools.wraps(original)\n"
        "def patched(x, *more, **named): return original(x * 2.0, *more, **named)\n"
        "cute.math.exp2 = patched\n"
    )
    ops = "import cutlass.cute as cute\ndef change(x): return cute.math.exp2(x)\n"
    (tmp_path / "ops.py").write_text(ops)
    program = "from ops import change\ndef keyed(): return [change]\n"
    assert keys(tmp_path, program) != keys(tmp_path, f"import patch\n{program}")


def test_an_adapter_of_an_arguments_class_is_in_the_key(keys, tmp_path):
    (tmp_path / "ops.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Host:\n    scale: int = 3\n"
        "    def __call__(self, x): return x * self.scale\n"
    )
    program = "from ops import Host\ndef keyed(): return [Host()]\n"
    found = keys(tmp_path, program)
    for options, scale in (("", 2), ("", 3), (", scope='cuda'", 3), ("", 2)):
        (tmp_path / "adapt.py").write_text(
            "import cutlass, ops\nfrom cutlass.base_dsl.runtime import jit_arg_adapters\n"
            f"@jit_arg_adapters.JitArgAdapterRegistry.register_jit_arg_adapter(ops.Host{options})\n"
            f"def adapted(host): return cutlass.Int32(host.scale * {scale})\n"
        )
        found += keys(tmp_path, f"import adapt\n{program}")
    assert len(set(found)) == 4
    assert found[1] == found[4]


def test_both_folders_of_a_namespace_package_are_in_the_key(keys, tmp_path):
    for folder, name, text in (
        ("one", "a", "from parts.b import by\ndef change(x): return by(x) * 2.0\n"),
        ("two", "b", "def by(x): return x\n"),
    ):
        (tmp_path / folder / "parts").mkdir(parents=True)
        (tmp_path / folder / "parts" / f"{name}.py").write_text(text)
    program = (
        f"import sys\nsys.path += [{str(tmp_path / 'one')!r}, {str(tmp_path / 'two')!r}]\n"
        "from parts.a import change\ndef keyed(): return [change]\n"
    )
    found = [keys(tmp_path, program)]
    for path in ("one/parts/a.py", "two/parts/b.py"):
        (tmp_path / path).write_text((tmp_path / path).read_text() + "# edited\n")
        found.append(keys(tmp_path, program))
    assert len(set(map(str, found))) == 3


def test_what_holds_more_than_its_fields_is_refused(keys, tmp_path):
    """A class of a program's own that is derived from an extension's."""
    found = keys(
        tmp_path,
        "import array, datetime, types\n"
        "class Items(array.array): pass\nclass Span(datetime.timedelta): pass\n"
        "class Own(Exception): pass\n"
        "class Slots:\n    __slots__ = ('by', '__weakref__')\n"
        "class Derived(Slots):\n    pass\n"
        "def with_closure(thing): return lambda x: x * thing\n"
        "def keyed():\n"
        "    for thing in Items('d', [2.0]), Span(2), Own('two'):\n        yield with_closure(thing)\n"
        "    for by in 2.0, 3.0:\n"
        "        for thing in Slots(), Derived(), types.SimpleNamespace():\n"
        "            thing.by = by\n            yield with_closure(thing)\n",
    )
    assert all("holds more than fields" in key for key in found[:3])
    assert len(set(found[3:])) == 6
    assert not [key for key in found[3:] if key.startswith("refused")]


def test_a_path_is_described_by_its_text(keys, tmp_path):
    """Not by what it remembers once it was used, such as its hash."""
    one, used, other = keys(
        tmp_path,
        "import pathlib\ndef with_closure(path): return lambda x: x * len(str(path))\n"
        "def keyed():\n"
        "    path = pathlib.Path('a')\n    yield with_closure(path)\n"
        "    hash(path), path.parts\n    yield with_closure(path)\n"
        "    yield with_closure(pathlib.Path('b'))\n",
    )
    assert one == used != other
    assert not one.startswith("refused")


def test_a_patch_of_the_dsl_by_the_script_is_refused(keys, tmp_path):
    script = "import cutlass.cute as cute\ndef patched(x): return x\ncute.math.exp2 = patched\n"
    (tmp_path / "ops.py").write_text("def change(x): return x\n")
    program = "from ops import change\ndef keyed(): return [change]\n"
    (key,) = keys(tmp_path, program, before=script)
    assert "the program's script has put patched into it" in key


_ANNOTATED = """
from keys import *
from typing import Optional, Tuple

@cute.kernel
def scale(values: cute.Tensor, by):
    thread, _, _ = cute.arch.thread_idx()
    values[thread] = values[thread] * by

def key(annotation, *arguments):
    @cute.jit
    def launch(values: cute.Tensor, given: annotation, stream):
        scale(values, cute.size(given)).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

    values = make_fake_tensor(cutlass.Float32, (cute.sym_int32(),), (1,))
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    surroundings = Surroundings(lambda target: {}, lambda target, numbers: {})
    calls = ((launch, values, argument, stream) for argument in arguments)
    made = (request_of(cute.compile, call, {"options": "--enable-tvm-ffi"}, surroundings) for call in calls)
    return [request.digest for request in made]

shapes = [(2, 3), (2, 4)]
for annotation in cute.Shape, cute.Stride, cute.Coord, cute.Tile, cute.IntTuple, Optional[cute.Shape]:
    one, other = key(annotation, *shapes)
    assert one != other, annotation
for annotation in tuple, Tuple[int, int], tuple[cutlass.Int32, cutlass.Int32], Optional[tuple]:
    one, other = key(annotation, *shapes)
    assert one == other, annotation
one, other = key(cute.Shape, (cutlass.Int32(2), 3), (cutlass.Int32(4), 3))
assert one == other
one, other, third = (key(dtype, 2) for dtype in (cutlass.Float32, cutlass.Int32, Optional[cutlass.Float32]))
assert one != other
print("checked")
"""


def test_annotations_decide_what_is_compiled_in(processes, tmp_path):
    (tmp_path / "keys.py").write_text(_KEYS)
    (tmp_path / "program.py").write_text("def keyed(): return []\n")
    (tmp_path / "annotated.py").write_text(_ANNOTATED)
    assert processes[0].run(tmp_path / "annotated.py").splitlines()[-1:] == ["checked"]


def test_what_was_reloaded_is_described_as_it_is(keys, tmp_path):
    (tmp_path / "ops.py").write_text("def change(x): return x * 2.0\n")
    program = (
        "import importlib, pathlib, ops\ndef keyed():\n    yield ops.change\n"
        "    pathlib.Path(ops.__file__).write_text('def change(x): return x * 3.0 # edited\\n')\n"
        "    importlib.reload(ops)\n    yield ops.change\n"
    )
    one, other = keys(tmp_path, program)
    assert one != other


def test_functions_of_one_decorator_have_keys_of_their_own(keys, tmp_path):
    program = (
        "import functools\nA = B = 1.0\ndef by(f):\n    @functools.wraps(f)\n    def call(x):\n"
        "        return f(x)\n    return call\n"
        "@by\ndef first(x):\n    return x * A\n@by\ndef second(x):\n    return x * B\n"
        "def keyed():\n    yield first\n    yield second\n    global B\n    B = 2.0\n    yield second\n"
    )
    assert len(set(keys(tmp_path, program))) == 3


def test_the_order_in_which_arguments_are_named_is_not_in_a_key(processes, tmp_path):
    (tmp_path / "keys.py").write_text(_KEYS)
    (tmp_path / "program.py").write_text("def keyed(): return []\n")
    code = (
        "from keys import *\n@cute.jit\n"
        "def named(values: cute.Tensor, b: cutlass.Int32, a: cutlass.Float32):\n"
        "    values[0] = a * b\n"
        "values = make_fake_tensor(cutlass.Float32, (cute.sym_int32(),), (1,))\n"
        "def of(*arguments, **named_):\n"
        "    surroundings = Surroundings(lambda target: {}, lambda target, numbers: {})\n"
        "    options = {'options': '--enable-tvm-ffi'}\n"
        "    made = request_of(cute.compile, (named, values, *arguments), named_ | options, surroundings)\n"
        "    return made.digest\n"
        "b, a = cutlass.Int32(1), cutlass.Float32(2)\n"
        "print(of(b, a) == of(b, a=a) == of(b=b, a=a) == of(a=a, b=b))\n"
    )
    (tmp_path / "orders.py").write_text(code)
    assert processes[0].run(tmp_path / "orders.py").splitlines()[-1] == "True"
