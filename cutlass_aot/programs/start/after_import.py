"""Call functions with modules that a program imports, at once where it has imported them already."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Seen = Callable[[ModuleType], None]


class AfterImport:
    """A finder that finds nothing itself: it has functions called with modules that were imported.

    Args:
        hooks: full name of each module to the function that is called with it, once it has been executed.
    """

    def __init__(self, hooks: Mapping[str, Seen]) -> None:
        self._hooks = dict(hooks)
        self._finding: set[str] = set()

    def begin(self) -> None:
        """Look at every import from now on, and at what was imported before."""
        sys.meta_path.insert(0, self)
        for name, seen in self._hooks.items():
            module = sys.modules.get(name)
            # One that is being imported right now is seen when it is complete: it has this loader or none.
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                seen(module)

    def end(self) -> None:
        """Look at no further import."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification that the other finders give, with a loader that calls the module's function."""
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
    """A loader that calls a function with the module it has executed; all else is the other loader's."""

    def __init__(self, loader: Any, seen: Seen) -> None:
        self._loader = loader
        self._seen = seen

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._seen(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
