"""What the suite puts into the DSL: the number of multiprocessors, and an end in the middle of an export."""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import Any

from tools.check.cache_conformance.protocol import SM_COUNT, interrupted


def tell_sm_count() -> None:
    """Have ``HardwareInfo`` tell what the job says, with no GPU at hand."""
    module: Any = importlib.import_module("cutlass.utils.hardware_info")
    kind = module.HardwareInfo
    kind.__init__ = lambda self, device_id=0: None
    kind.get_device_multiprocessor_count = lambda self: int(os.environ[SM_COUNT])


def kill_exports() -> None:
    """Have the process killed as it writes what it compiled."""
    module: Any = importlib.import_module("cutlass.cutlass_dsl.tvm_ffi_provider")
    for kind in vars(module).values():
        original = isinstance(kind, type) and vars(kind).get("export_to_c")
        if not original:
            continue

        @functools.wraps(original)
        def export(self: Any, *arguments: Any, original: Any = original, **keywords: Any) -> None:
            original(self, *arguments, **keywords)
            interrupted(Path(arguments[0] if arguments else keywords["object_file_path"]))

        kind.export_to_c = export
