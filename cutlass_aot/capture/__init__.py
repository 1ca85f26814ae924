"""Which CuTe DSL kernels a program compiles, as the manifest that would have prebuilt them.

``cutlass-aot capture -- python app.py`` runs a program with it; :func:`capture` is the same for a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cutlass_aot.capture.found import Found
from cutlass_aot.capture.watch import Watch

__all__ = ["Found", "capture"]


@contextmanager
def capture() -> Iterator[Found]:
    """Within the block, in every thread: what is compiled is written down.

    ::

        from cutlass_aot.capture import capture
        from cutlass_aot.capture.manifest import manifest_text

        with capture() as found:
            model(x)
        text = manifest_text(found, "my-kernels", ["sm_90a"])
    """
    watch = Watch()
    watch.begin()
    try:
        yield watch.found
    finally:
        watch.end()
