"""Facts that compatibility is decided by: of this machine, or of another one from a file.

The file is TOML, or JSON with the same keys; ``cutlass-aot doctor --facts-out`` writes one::

    host = "aarch64"                # CPU architecture, as `uname -m` names it
    libc = "glibc 2.39"             # or "musl"; left out: another one
    python = "3.12.3"               # left out: not known, which refuses nothing
    tvm_ffi = "0.1.15.post2"        # apache-tvm-ffi; left out: not installed
    torch = "2.11.0"                # left out: not installed
    torch_cuda = "13.0"             # what torch was built for; left out: not known, or nothing

    [driver]                        # left out: there is none
    cuda = "13.0"                   # newest CUDA version that it supports
    release = "580.126.09"          # one of the two is enough

    [[gpus]]                        # one table each; left out: there are none
    name = "NVIDIA GB300"
    compute_capability = "10.3"     # left out: that of the model, where it is known
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CutlassAotError, FactsError
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.machine import host as machine
from cutlass_aot.runtime.machine.compatibility import Driver, Gpu, Machine
from cutlass_aot.schema.encoding import shown
from cutlass_aot.schema.words import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 1 << 20
MAX_GPUS = 1024
MAX_TEXT = 200

TEXTS = ("host", "libc", "python", "tvm_ffi", "torch", "torch_cuda")
KEYS = (*TEXTS, "driver", "gpus")
DRIVER_KEYS = ("cuda", "release")
GPU_KEYS = ("name", "compute_capability")

_MAJOR_MINOR = re.compile(r"(\d{1,3})\.(\d{1,2})", re.ASCII)
_RELEASE = re.compile(r"\d{1,6}(\.\d{1,6}){1,3}", re.ASCII)
_OTHER_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}


def this_machine() -> Machine:
    """Facts of this machine. Its GPUs are those that the driver reports; nothing is imported for them."""
    return Machine(
        host=os.uname().machine,
        libc=machine.c_library(),
        tvm_ffi=machine.installed_version("apache-tvm-ffi"),
        python=platform.python_version(),
        torch=machine.installed_version("torch"),
        torch_cuda=machine.torch_cuda(),
        driver=_driver(),
        gpus=_gpus(),
    )


def _driver() -> Driver | None:
    try:
        cuda = cuda_driver.driver_version()
    except CutlassAotError:
        return None
    # A driver's library without its kernel module says 0.0.
    return Driver(cuda, cuda_driver.driver_release()) if cuda[0] else None


def _gpus() -> tuple[Gpu, ...]:
    try:
        return tuple(
            Gpu(cuda_driver.device_name(ordinal), cuda_driver.compute_capability(ordinal))
            for ordinal in range(cuda_driver.device_count())
        )
    except CutlassAotError:
        return ()


def facts_record(facts: Machine) -> dict[str, Any]:
    """Facts as plain data; :func:`facts_of` reads them again. What is None is left out."""
    record: dict[str, Any] = {name: getattr(facts, name) for name in TEXTS}
    if facts.driver is not None:
        cuda = facts.driver.cuda
        driver = {"cuda": cuda and f"{cuda[0]}.{cuda[1]}", "release": facts.driver.release}
        record["driver"] = _without_none(driver)
    record["gpus"] = [
        _without_none({"name": gpu.name, "compute_capability": c and f"{c[0]}.{c[1]}"})
        for gpu in facts.gpus or ()
        for c in [gpu.capability]
    ]
    return _without_none(record)


def _without_none(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}


def read_facts(path: Path) -> Machine:
    """Facts of a machine from a file; ``-`` is standard input."""
    what = "standard input" if str(path) == "-" else str(path)
    try:
        if what == "standard input":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FactsError(f"{what} cannot be read: {error.strerror or error}") from None
    # A path with a NUL, or with what has no bytes in the file system's encoding.
    except ValueError as error:
        raise FactsError(f"{what!r} cannot be the path of a file: {error}") from None
    return parse_facts(data, what)


def parse_facts(data: bytes, what: str) -> Machine:
    """Read the bytes of a file of facts; ``what`` is its name in an error.

    What ``cutlass-aot doctor --json`` prints has the facts under ``facts``, and is read too.
    """
    if len(data) > MAX_BYTES:
        raise FactsError(f"{what} has more than {MAX_BYTES} bytes, which no machine's facts have")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FactsError(f"{what}: not UTF-8 text at byte {error.start}") from None
    # No TOML document begins with a brace.
    is_json = text.lstrip().startswith("{")
    try:
        document = json.loads(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FactsError(f"{what}: not valid {'JSON' if is_json else 'TOML'}: {error}") from None
    if "cutlass_aot" in document and "facts" in document:
        document = document["facts"]
    return facts_of(document, what)


def facts_of(document: Any, what: str) -> Machine:
    """The facts in a parsed document; ``what`` is its name in an error."""
    record = _table(document, "", KEYS, what)
    texts = {name: _text(record, name, "", what) for name in TEXTS}
    if texts["host"] is None:
        raise FactsError(f"{what}: key `host` is missing: expected a CPU architecture such as x86_64")
    host = texts.pop("host")
    driver = None
    if "driver" in record:
        table = _table(record["driver"], "driver", DRIVER_KEYS, what)
        release = _text(table, "release", "driver.", what)
        if release is not None and not _RELEASE.fullmatch(release):
            raise FactsError(f"{what}: `driver.release` is {release!r}: expected such text as 580.126.09")
        driver = Driver(_major_minor(table, "cuda", "driver.", what), release)
        if driver == Driver():
            raise FactsError(f"{what}: `driver` is empty: expected `cuda`, `release` or both")
    return Machine(
        host=_OTHER_NAMES.get(host or "", host or ""),
        libc=texts["libc"],
        tvm_ffi=texts["tvm_ffi"],
        python=texts["python"],
        torch=texts["torch"],
        torch_cuda=texts["torch_cuda"],
        driver=driver,
        gpus=_gpus_of(record.get("gpus", []), what),
    )


def _gpus_of(found: Any, what: str) -> tuple[Gpu, ...]:
    if not isinstance(found, list) or len(found) > MAX_GPUS:
        raise FactsError(f"{what}: `gpus` is not a list of at most {MAX_GPUS} tables: expected [[gpus]]")
    gpus = []
    for number, item in enumerate(found):
        where = f"gpus[{number}]"
        table = _table(item, where, GPU_KEYS, what)
        name = _text(table, "name", f"{where}.", what)
        if name is None:
            raise FactsError(f"{what}: `{where}.name` is missing: expected a model such as NVIDIA H200")
        gpus.append(Gpu(name, _major_minor(table, "compute_capability", f"{where}.", what)))
    return tuple(gpus)


def _table(value: Any, where: str, allowed: tuple[str, ...], what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        name = f"`{where}`" if where else "the document"
        raise FactsError(f"{what}: {name} is a {type(value).__name__}: expected a table")
    unknown = sorted(set(value) - set(allowed))
    if unknown:
        known = ", ".join(f"`{key}`" for key in allowed)
        key = f"{where}.{unknown[0]}" if where else unknown[0]
        raise FactsError(
            f"{what}: unknown key {key[:MAX_TEXT]!r}: expected one of {known}"
            + did_you_mean(unknown[0], allowed)
        )
    return value


def _text(table: Mapping[str, Any], name: str, where: str, what: str) -> str | None:
    value = table.get(name)
    if name not in table or (isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable()):
        return value
    raise FactsError(
        f"{what}: `{where}{name}` is {shown(value)}: expected printable text of at most {MAX_TEXT} "
        "characters; leave the key out for what is not there"
    )


def _major_minor(table: Mapping[str, Any], name: str, where: str, what: str) -> tuple[int, int] | None:
    text = _text(table, name, where, what)
    if text is None:
        return None
    match = _MAJOR_MINOR.fullmatch(text)
    if match is None:
        raise FactsError(f"{what}: `{where}{name}` is {text!r}: expected a version such as 12.8")
    return int(match[1]), int(match[2])
