"""The DSL's task schedules: what a program declares of them when it is imported."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from cutlass_aot.programs.without_dsl import names
from cutlass_aot.programs.without_dsl.finder import find
from cutlass_aot.programs.without_dsl.placeholders import by_name, class_for, function

_RESOURCES = "cutlass.experimental.task_scheduling.resources"


def resources() -> Mapping[str, Any]:
    """``MemoryResource`` and ``TaskLocalVariable``, and the decorators of a resource's methods."""

    def placeholder(name: str) -> Any:
        where = f"{_RESOURCES}:{name}"
        return class_for(where, names.class_entry(where) or {}, find)

    def hashed(kind: Any) -> None:
        # A dataclass has no other hash than one that is there before it is decorated.
        kind.__hash__ = resource.__hash__

    resource, variable = placeholder("MemoryResource"), placeholder("TaskLocalVariable")
    resource.__init_subclass__ = classmethod(hashed)
    # A field that its class sets later, with the DSL's mark of such fields.
    variable.uninitialized = staticmethod(lambda: dataclasses.field(init=False, metadata={"ts": {}}))

    def work(name: str) -> Any:
        def decorate(method: Any = None, **options: Any) -> Any:
            # Requests use its `__wrapped__`.
            return decorate if method is None else functools.wraps(method)(function(f"{_RESOURCES}:{name}"))

        decorate.__name__ = name
        return decorate

    return by_name(resource, variable, work("consumer_work"), work("producer_work"))
