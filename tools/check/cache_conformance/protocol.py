"""What a cache has to offer to be tested.

A cache is reached by an object with the attributes of :class:`Cache`. The suite finds it by its name among
those of :mod:`~.cache_conformance.caches`, or as ``module:attribute``, where the attribute is a class or a
function without arguments that gives one.

A process of the suite calls :meth:`Cache.prepare` once, and then :meth:`Cache.compile` once for each call of
a program. What it is given calls ``cute.compile`` once: ``function(*arguments, **keywords)`` returns the
compiled function, and is what a caching decorator would stand on, as on ``quack.softmax.Softmax.compile``. A
cache that stands before ``cute.compile`` calls the function and answers from inside; one that keys the
arguments of a function keys ``arguments`` and ``keywords``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

Outcome = Literal["hit", "miss", "refused"]

KILL = "CACHE_CONFORMANCE_KILL"
"""Environment variable that is set where a writer is to be killed."""
SM_COUNT = "CACHE_CONFORMANCE_SM_COUNT"
"""Environment variable with the number of streaming multiprocessors that ``HardwareInfo`` tells."""


class Cache(Protocol):
    """A cache under test.

    Attributes:
        name: what the tables call it.
        environment: variables that are set before its modules are imported.
        modules: imported before any program, once for many hazards.
        distributions: whose versions stand over its table.
        not_applicable: name of a hazard to the reason why it makes no sense for this cache.
    """

    name: str
    environment: Mapping[str, str]
    modules: Sequence[str]
    distributions: Sequence[str]
    not_applicable: Mapping[str, str]

    def prepare(self, directory: Path, program: Path, *, entries: bool) -> None:
        """Keep entries in a directory from now on.

        Args:
            directory: shared by the processes of one hazard.
            program: directory with the program's sources.
            entries: whether the hazard is about the entries that are written. If not, a cache that has its
                key before anything is compiled may keep the key alone.
        """

    def compile(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Outcome:
        """Answer ``function(*arguments, **keywords)`` from the cache, or call it and keep what it gives.

        Returns:
            ``hit`` if an entry answered, ``miss`` if it was compiled, ``refused`` if the cache declined to
            make a key. An exception is noted as an error.
        """


def interrupted(path: Path) -> None:
    """In the middle of writing a file: die, if this process is the writer that is to be killed.

    The suite does this to ``export_to_c`` of every compiled function; a cache that writes entries in another
    way calls it between the first and the last byte.
    """
    if os.environ.get(KILL):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        # Its forks, too: nobody is left who could tidy up.
        os.killpg(0, signal.SIGKILL)
