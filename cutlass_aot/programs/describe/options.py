"""The compile options and settings that differ from the DSL's defaults, and the target."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.call import Call
from cutlass_aot.programs.describe.values.dsl import changed_options
from cutlass_aot.programs.without_tvm_ffi import OPTION as WITH_TVM_FFI
from cutlass_aot.schema.requests.request import Value

_REFUSED_OPTIONS = {
    "keep-ptx": "PTX", "keep-cubin": "a cubin", "keep-sass": "SASS", "device-target": "a device function",
    "host-target": "code for another host", "link-libraries": "libraries to link",
}  # fmt: skip
_SELECTORS = ("FrontendNext", "DisableCuteExtCompile")
"""Options that ``options=`` does not replace."""
_OTHER_OPTIONS = ("dump-dir", "dump-ptx-path", "dump-cubin-path", "dump-sass-path", "generate-line-info")
"""Options that change no instruction. Line numbers are never compiled in, since they name files by path."""
_DEFAULT_SETTINGS = {"tolerate_m2m": True, "compiler_backend": "legacy"}
"""Settings of the DSL whose default is not off or empty."""
_NO_SETTINGS = frozenset({"arch", "enable_tvm_ffi", "shared_libs"})
"""Settings that a request has elsewhere, or that are file names."""


def options_of(compiler: Any, call: Call) -> tuple[dict[str, Value], str]:
    """Options that differ from their defaults, and the GPU code target."""
    text = call.controls.get("options")
    if text is not None and not isinstance(text, str):
        raise RequestError(f"{call.name}: options: a {type(text).__name__}, expected text")
    own = changed_options(compiler._compile_options)
    if text:
        own = {**_parsed(text), **{name: own[name] for name in _SELECTORS if name in own}}
    settings = sys.modules["cutlass.base_dsl.dsl"].BaseDSL._get_dsl().envar
    for name, what in _REFUSED_OPTIONS.items():
        if own.get(name):
            raise RequestError(f"{call.name}: options: it asks for {what}, which a bundle does not have")
    arch = str(own.pop("cubin-chip", "") or settings.arch)
    if not own.pop(WITH_TVM_FFI, False) and not settings.enable_tvm_ffi:
        own[WITH_TVM_FFI] = False
    for name in _OTHER_OPTIONS:
        own.pop(name, None)
    for entry in settings._ENV_VAR_SPEC:
        name = str(entry.key_name)
        if entry.affects_compile and name.lstrip("_") not in _NO_SETTINGS:
            value = getattr(settings, name)
            if value and value != _DEFAULT_SETTINGS.get(name):
                own[f"CUTE_DSL:{name}"] = value if isinstance(value, (bool, int, str)) else str(value)
    for name, default in _DEFAULT_SETTINGS.items():
        if not getattr(settings, name, default):
            own[f"CUTE_DSL:{name}"] = False
    return own, arch


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Mapping[str, Value]:
    compiler = sys.modules["cutlass.base_dsl.compiler"]
    try:
        return changed_options(compiler._parse_compile_options_from_str(text))
    except Exception as error:
        raise RequestError(f"options {text!r} cannot be read: {error}") from None
