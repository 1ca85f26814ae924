"""Call functions with modules once a program has imported them, or at once if it has already."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Seen = Callable[[ModuleType], None]


class AfterImport:
    """A finder that adds hooks to imports: by full module name, functions called with the executed module."""

    def __init__(self, hooks: Mapping[str, Seen]) -> None:
        self._hooks = dict(hooks)
        self._finding: set[str] = set()

    def begin(self) -> None:
        """Call hooks for modules imported so far, and for later imports."""
        sys.meta_path.insert(0, self)
        for name, seen in self._hooks.items():
            module = sys.modules.get(name)
            # Not for one that is being imported right now: its loader, if it is this one, calls the hook.
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                seen(module)

    def end(self) -> None:
        """Call no hooks for later imports."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the other finders, with a loader that calls the module's hook."""
        if name not in self._hooks or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._hooks[name])  # type: ignore[assignment]
        return spec


class _Loader:
    """Wraps a loader to call a function with the executed module."""

    def __init__(self, loader: Any, seen: Seen) -> None:
        self._loader = loader
        self._seen = seen

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._seen(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
