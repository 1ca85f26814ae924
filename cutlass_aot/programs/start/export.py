"""Object code of compiled functions, which caches of programs keep: only the DSL's own functions have it."""

from __future__ import annotations

from typing import NoReturn

from cutlass_aot.errors import ProgramError
from cutlass_aot.schema.entry_points import PROGRAMS


class ExportRefused(ProgramError, AttributeError):
    """A program exports what stands for a compiled function.

    It is an AttributeError too: some packages keep a function only if it has the method.
    """


def _refused(name: str) -> property:
    def refuse(function: object) -> NoReturn:
        raise ExportRefused(
            f"{name} of {function!r} was requested, which has no object code, expected calls alone: a cache "
            "of the program keeps compiled kernels; turn it off, in a recording by `environment` in "
            f"[[programs]], or have its package described by an entry point of the group {PROGRAMS}"
        )

    return property(refuse)


class NotExported:
    """Base class of what stands for a compiled function: the DSL's methods that export one are refused.

    A prebuilt function with TVM-FFI is served as it is, and has neither these methods nor the message.
    """

    __slots__ = ()

    export_to_c = _refused("export_to_c")
    dump_to_object = _refused("dump_to_object")
