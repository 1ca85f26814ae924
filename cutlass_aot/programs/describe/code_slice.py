"""The code that a request follows from: fingerprints of its origins, and the names and values that it reads.

:mod:`~cutlass_aot.programs.describe.follow_code` makes slices, and uses one again while it is valid.
Module-level values that the functions read are described with each request, since a program may change them.
A value that equals the literal in its module's source is left out.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterable, Mapping, Sized
from typing import Any, NamedTuple

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.definitions import cells_of, script_source
from cutlass_aot.programs.describe.distributions import Origin, deciding_origin_of, joined
from cutlass_aot.programs.describe.literals import is_as_written
from cutlass_aot.programs.describe.value_kinds import array_digest, is_array
from cutlass_aot.programs.describe.values.describer import Describer
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.requests.request import Value

ABSENT = object()
"""Stands for the value of a name that a module does not have."""


class Slot(NamedTuple):
    """A name that the code reads in ``namespace``, the variables of a module or class.

    Requests call it ``label``, ``module:name``; it had the value ``held`` when the slice was made.
    """

    namespace: Mapping[str, Any]
    name: str
    label: str
    held: Any


class CodeSlice(NamedTuple):
    """The code that some functions and classes depend on.

    The slice is valid while ``fixed``, ``defaults``, ``sizes`` and ``cells`` are unchanged.

    Attributes:
        code: the ``code`` of a request: fingerprints of the code's origins, by their names, and of the source
            of functions and classes of ``__main__``.
        fixed: names that hold functions, classes and modules.
        defaults: functions that were followed, with their default values.
        sizes: how many names modules, classes and functions have.
        cells: variables of decorators, with the values that were described.
        plain: names that hold values.
        variables: environment variables that the code names.
        made: names that hold functions and classes which no module has under their names, such as lambdas:
            they are described with the request.
        bindings: a digest of the names that hold functions and classes of other names, of default values,
            and of the values that decorators were given. Empty if there are none.
        memories: functions of decorators that hold more than plain values, such as a dictionary of earlier
            results: a trace must not run them.
        followed: the functions and classes that were followed, by ``id``.
    """

    code: Mapping[str, str]
    fixed: tuple[Slot, ...]
    defaults: tuple[tuple[types.FunctionType, Any, Any], ...]
    sizes: tuple[tuple[Sized, int], ...]
    cells: tuple[tuple[types.CellType, Any], ...]
    plain: tuple[Slot, ...]
    variables: tuple[str, ...]
    made: tuple[Slot, ...]
    bindings: str
    memories: Mapping[types.CodeType, str]
    followed: Mapping[int, Any]

    def holds(self) -> bool:
        """Whether the slice is still valid."""
        return (
            all(slot.namespace.get(slot.name, ABSENT) is slot.held for slot in self.fixed)
            and all(len(names) == count for names, count in self.sizes)
            and all(
                function.__defaults__ is defaults and function.__kwdefaults__ is by_name
                for function, defaults, by_name in self.defaults
            )
            and all(cell.cell_contents is value for cell, value in self.cells)
        )

    def state(self, given: Mapping[str, str]) -> dict[str, Value]:
        """The ``state`` of a request, from the present values; :class:`Outdated` if they hold new code.

        ``given`` are environment variables that tell packages the request's target. They are left out if they
        have these values, so that a program which asks the GPU itself makes the same request.
        """
        state: dict[str, Value] = {}
        for slot in self.plain:
            value = slot.namespace.get(slot.name)
            if not is_as_written(slot.label, value):
                state[slot.label] = self._described(slot.label, value)
        for slot in self.made:
            state[slot.label] = self._described(slot.label, slot.held)
        if self.bindings:
            state["bindings"] = self.bindings
        for name in self.variables:
            value = os.environ.get(name)
            if value is not None and given.get(name) != value:
                state[f"environment:{name}"] = value
        return state

    def _described(self, label: str, value: Any) -> Value:
        if is_array(value):
            return array_digest(value)
        describer = Describer()
        described = describer.argument(label, value)
        if not self.followed.keys() >= describer.code.keys():
            raise Outdated(f"{label} makes a new function or class at each access: make it once")
        return described


class Outdated(RequestError):
    """Values have come to hold functions or classes that the slice does not have."""


class SliceBuilder:
    """Collects the parts of a slice; ``layers`` are functions and what decorators made of them, by ``id``."""

    def __init__(self) -> None:
        self.followed: dict[int, Any] = {}
        self.layers: dict[int, types.FunctionType] = {}
        self.variables: set[str] = set()
        self.memories: dict[types.CodeType, str] = {}
        self._origins: dict[str, set[Origin]] = {}
        self._scripts: dict[str, str] = {}
        self._fixed: dict[tuple[int, str], Slot] = {}
        self._plain: dict[tuple[int, str], Slot] = {}
        self._made: dict[tuple[int, str], Slot] = {}
        self._sizes: dict[int, Sized] = {}
        self._cells: list[tuple[types.CellType, Any]] = []
        self._bindings: list[list[Value]] = []

    def note_module(self, module: types.ModuleType) -> bool:
        """Add a module's origin; returns whether its code may decide kernels."""
        origin = deciding_origin_of(module)
        if origin is not None:
            self._origins.setdefault(origin.name, set()).add(origin)
        return origin is not None

    def note_script(self, name: str, thing: Any) -> None:
        """Add the source of a function or class of ``__main__``."""
        self._scripts[name] = script_source(thing)

    def fix(self, slot: Slot) -> bool:
        """Make the slice invalid once the name holds something else; returns whether the name is new."""
        return self._fixed.setdefault((id(slot.namespace), slot.name), slot) is slot

    def fix_all(self, namespace: Mapping[str, Any], label: str) -> None:
        """Make the slice invalid once one of the names of a namespace holds something else."""
        for name, value in list(namespace.items()):
            self.fix(Slot(namespace, name, f"{label}({name})", value))

    def watch(self, names: Sized) -> None:
        """Make the slice invalid once the number of names changes."""
        self._sizes[id(names)] = names

    def fix_cells(self, function: types.FunctionType, variables: Iterable[str]) -> None:
        """Make the slice invalid once one of these closure variables holds something else."""
        cells = cells_of(function)
        self._cells += [(cells[name], cells[name].cell_contents) for name in variables]

    def describe(self, slot: Slot) -> bool:
        """Describe the name's value with each request; returns whether the name is new."""
        return self._plain.setdefault((id(slot.namespace), slot.name), slot) is slot

    def describe_made(self, slot: Slot) -> None:
        """Describe code that no module has under its name with each request."""
        self._made[id(slot.namespace), slot.name] = slot

    def bind(self, *told: Value) -> None:
        """Add values to the digest of the bindings."""
        self._bindings.append(list(told))

    def build(self) -> CodeSlice:
        """Make the slice."""
        code = {name: joined(o.fingerprint for o in origins) for name, origins in self._origins.items()}
        code |= {name: f"- {digest(text.encode())[:32]}" for name, text in self._scripts.items()}
        return CodeSlice(
            dict(sorted(code.items())),
            _in_order(self._fixed.values()),
            tuple((f, f.__defaults__, f.__kwdefaults__) for f in self.layers.values()),
            tuple((names, len(names)) for names in self._sizes.values()),
            tuple(self._cells),
            _in_order(self._plain.values()),
            tuple(sorted(self.variables)),
            _in_order(self._made.values()),
            digest(encode(sorted(self._bindings, key=encode)))[:32] if self._bindings else "",
            self.memories,
            self.followed,
        )


def _in_order(slots: Iterable[Slot]) -> tuple[Slot, ...]:
    return tuple(sorted(slots, key=lambda slot: slot.label))
