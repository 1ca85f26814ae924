"""What is read back from objects, checked against NVIDIA's own tools; what was not requested is refused."""

from __future__ import annotations

import dataclasses
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_aot.builder.compile.audit import (
    ALLOWED_UNDEFINED,
    Inspection,
    audit,
    inspect_object,
)
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.link.packages import package_file
from cutlass_aot.builder.native import SHIM_SYMBOLS
from cutlass_aot.errors import ArtifactError, CorruptFile, SchemaTooNew
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.kernels.artifact import Facts
from tests.support.listings import listings
from tools.check.instructions import disassemble

pytestmark = pytest.mark.compile

MAGIC = b"\x50\xed\x55\xba"


def cubin(data: bytes) -> bytes:
    """The GPU code of an object, cut out by hand."""
    start = data.index(MAGIC)
    entry = start + 16
    header, size = struct.unpack_from("<IQ", data, entry + 4)
    return data[entry + header : entry + header + size]


def fatbin(data: bytes) -> bytes:
    """The whole container of an object."""
    start = data.index(MAGIC)
    header, size = struct.unpack_from("<HQ", data, start + 6)
    return data[start : start + header + size]


def embed(content: bytes) -> bytes:
    """A kernel object that holds the given bytes for its GPU code."""
    return KernelObject("define i32 @__tvm_ffi_k() {\n  ret i32 0\n}\n", content).to_bytes()


def test_facts_are_those_of_cuobjdump(objects: dict[str, Path], tmp_path: Path) -> None:
    cuobjdump = package_file("nvidia-cuda-cuobjdump", "bin/cuobjdump")
    stacks = set()
    for name, path in objects.items():
        data = path.read_bytes()
        facts = inspect_object(data).facts
        file = tmp_path / f"{name}.cubin"
        file.write_bytes(cubin(data))
        usage = subprocess.run(
            [cuobjdump, "-res-usage", file], capture_output=True, text=True, check=True
        ).stdout
        kernel = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) ", usage)
        assert kernel is not None
        found = (facts.registers, facts.spill_bytes, facts.shared_memory_bytes)
        assert found == tuple(int(number) for number in kernel.groups()), name
        stacks.add(facts.spill_bytes > 0)
        header = subprocess.run([cuobjdump, "-elf", file], capture_output=True, text=True, check=True).stdout[
            :2000
        ]
        # "toolkit=12.9" for newer cubins, "toolkit=129" for older ones.
        toolkit = re.search(r"toolkit=([0-9.]+)", header)
        assert toolkit is not None
        version = facts.ptxas_version.split(".")
        assert toolkit.group(1).replace(".", "") == "".join(version[:2])
        assert facts.cubin_bytes == len(cubin(data))
    assert stacks == {True, False}  # kernels of both kinds were seen


def test_the_target_is_read_with_its_suffix(objects: dict[str, Path]) -> None:
    targets = set()
    for name, path in objects.items():
        target = name[name.index("sm_") :]
        assert inspect_object(path.read_bytes()).facts.cubin_target == target
        targets.add(target)
    assert targets == {"sm_80", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a"}


@pytest.mark.parametrize(("value", "target"), [(1, "sm_100a"), (0, "")])
def test_the_suffix_is_read_where_cuda_13_writes_it(
    objects: dict[str, Path], value: int, target: str
) -> None:
    # It sets no flag, and has attribute 9 of .nv.compat instead: here, in the place of attribute 5.
    data = bytearray(objects["gemm_sm_100a"].read_bytes())
    start = data.index(b"\x7fELF", 1)
    data[start + 48] &= ~8
    record = data.index(bytes([2, 2, 2, 0, 2, 5]), start) + 4
    data[record + 1 : record + 3] = bytes([9, value])
    if target:
        assert inspect_object(bytes(data)).facts.cubin_target == target
    else:
        with pytest.raises(CorruptFile, match="the fat binary says sm_100a, its cubin sm_100:"):
            inspect_object(bytes(data))


def test_real_objects_pass(objects: dict[str, Path]) -> None:
    for name, path in objects.items():
        inspection = inspect_object(path.read_bytes())
        assert inspection.defined == (f"__tvm_ffi_{name}", f"cutlass_aot_code_{name}")
        assert set(inspection.undefined) <= ALLOWED_UNDEFINED
        # Everything that objects of every family are known to call, and nothing less.
        maps = {"_cuTensorMapEncodeTiled", "cuda_dialect_assert_success"}
        missing = SHIM_SYMBOLS - set(inspection.undefined)
        # One that takes addresses alone does not know which device to set.
        known = {"_cudaSetDevice"} if "addressed" in name else set()
        assert missing - maps - known == {"CuteDSLRT_TVMFFISetRaisedCudaLaunchError"}
        assert missing & maps == (set() if name.startswith("mapped") else maps)
        audit(inspection, name[name.index("sm_") :], name)


def test_equal_objects_have_equal_facts(objects: dict[str, Path]) -> None:
    data = objects["gemm_sm_100a"].read_bytes()
    assert inspect_object(data) == inspect_object(bytes(bytearray(data)))


@pytest.mark.parametrize(
    ("change", "target", "message"),
    [
        ({}, "sm_100f", "built for sm_100a, expected sm_100f"),
        ({}, "sm_103a", "built for sm_100a, expected sm_103a"),
        ({"undefined": ("system", "_cudaGetDevice")}, "sm_100a", "provides at run time: system;"),
        ({"undefined": ("_cudaGraphLaunch",)}, "sm_100a", "run time: _cudaGraphLaunch;"),
        ({"defined": ("__tvm_ffi_other",)}, "sm_100a", "does not define __tvm_ffi_k .shows __tvm"),
        ({"defined": ()}, "sm_100a", "does not define __tvm_ffi_k .shows none"),
        ({"defined": ("__tvm_ffi_k", "cuda_init")}, "sm_100a", "shows cuda_init besides"),
    ],
)
def test_what_was_not_asked_for_is_refused(change: dict[str, Any], target: str, message: str) -> None:
    facts = Facts("sm_100a", "12.9", 100, 0, 1024, 4096)
    sound = Inspection(facts, ("TVMFFIEnvGetStream", "memcpy"), ("__tvm_ffi_k",))
    audit(sound, "sm_100a", "k")
    with pytest.raises(ArtifactError, match=re.escape(message).replace(r"\.shows", "\\(it shows")):
        audit(dataclasses.replace(sound, **change), target, "k")


def test_an_object_with_another_undefined_symbol_is_refused(objects: dict[str, Path]) -> None:
    data = objects["scale_sm_90a"].read_bytes().replace(b"@_cudaSetDevice(", b"@_cudaSetPlanet(")
    with pytest.raises(ArtifactError, match="run time: _cudaSetPlanet;"):
        audit(inspect_object(data), "sm_90a", "scale_sm_90a")


def test_an_object_without_gpu_code_is_refused() -> None:
    data = embed(b"no magic here")
    with pytest.raises(ArtifactError, match="holds no GPU code"):
        inspect_object(data)
    with pytest.raises(ArtifactError, match="holds no GPU code"):
        disassemble(data)


def test_an_object_for_two_targets_is_refused(objects: dict[str, Path]) -> None:
    one, two = (fatbin(objects[n].read_bytes()) for n in ("scale_sm_90a", "mix_sm_80"))
    assert inspect_object(embed(one + one)).facts.cubin_target == "sm_90a"
    with pytest.raises(ArtifactError, match=r"for sm_80, sm_90a \(ptxas 12.9\)"):
        inspect_object(embed(one + two))


def test_compressed_gpu_code_is_refused(objects: dict[str, Path]) -> None:
    container = fatbin(objects["scale_sm_90a"].read_bytes()).replace(b"\x7fELF", b"\xf0\x23LZ")
    with pytest.raises(ArtifactError, match="compressed or in no known format"):
        inspect_object(embed(container))


def test_a_cubin_that_is_not_what_its_container_says_is_corrupt(objects: dict[str, Path]) -> None:
    data = bytearray(objects["scale_sm_90a"].read_bytes())
    flags = data.index(b"\x7fELF", 1) + 48
    assert struct.unpack_from("<I", data, flags) == (0x5A0D5A,)
    data[flags] = 80
    with pytest.raises(CorruptFile, match="fat binary says sm_90a, its cubin sm_80a"):
        inspect_object(bytes(data))


def test_a_cubin_without_its_toolkits_version_is_corrupt(objects: dict[str, Path]) -> None:
    data = bytearray(objects["scale_sm_90a"].read_bytes())
    version = data.index(b"\x7fELF", 1) + 20
    assert struct.unpack_from("<I", data, version) == (129,)
    struct.pack_into("<I", data, version, 1)
    with pytest.raises(CorruptFile, match="does not say its registers or its assembler's version"):
        inspect_object(bytes(data))


def test_other_files_are_refused(objects: dict[str, Path]) -> None:
    data = objects["scale_sm_90a"].read_bytes()
    for other in (b"", b"\x7fELF", b"text" * 1000, cubin(data), encode({"kind": "cutlass-aot artifact"})):
        with pytest.raises(CorruptFile, match="the object"):
            inspect_object(other)
    for name, missing in (("host_code", b"text"), ("gpu_code", "text"), ("gpu_code", None)):
        record = {**decode(data, "the object"), name: missing}
        with pytest.raises(
            CorruptFile, match=f"the object is malformed: {name}: found .*, expected (text|bytes)"
        ):
            inspect_object(encode(record))
    with pytest.raises(SchemaTooNew):
        inspect_object(encode({**decode(data, "the object"), "schema": 1000}))


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damaged_objects_are_refused_or_read(objects: dict[str, Path], data: st.DataObject) -> None:
    """No damage gives any other exception, nor takes long."""
    name = data.draw(st.sampled_from(["scale_sm_90a", "scale_sm_100f"]))
    content = bytearray(objects[name].read_bytes())
    code = content.index(MAGIC)
    # Half of the damage goes where the structure is: headers of the object, the container and the cubin.
    places = st.one_of(
        st.integers(0, len(content) - 1),
        st.integers(0, 63),
        st.integers(code, code + 300),
        st.integers(code - 16, code - 1),
    )
    for place in data.draw(st.lists(places, max_size=6)):
        content[place] = data.draw(st.integers(0, 255))
    length = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    try:
        inspection = inspect_object(bytes(content[:length]))
    except (CorruptFile, ArtifactError, SchemaTooNew):
        return
    assert inspection.facts.registers > 0
    assert inspection.facts.cubin_target.startswith("sm_")


def test_every_truncation_in_the_gpu_code_is_noticed(objects: dict[str, Path]) -> None:
    data = objects["scale_sm_90a"].read_bytes()
    for length in range(0, len(data) - 1, 97):
        with pytest.raises((CorruptFile, ArtifactError)):
            inspect_object(data[:length])


def test_a_gemm_for_sm_100a_uses_the_tensor_cores_of_its_generation(
    objects: dict[str, Path],
) -> None:
    text = disassemble(objects["gemm_sm_100a"].read_bytes())
    assert re.search(r"\bUTCHMMA\b", text)
    assert re.search(r"\bUTMALDG\b", text)
    spilling = disassemble(objects["mix_sm_90a"].read_bytes())
    assert re.search(r"\bSTL\b", spilling)
    assert "UTCHMMA" not in spilling
    # As other tests ask for many at once: without notes, and of a branch there is an address, not a label.
    names = ("gemm_sm_100a", "scale_sm_100f", "mix_sm_90a", "mix_sm_100a")
    found = listings([objects[name].read_bytes() for name in names])
    for whole, listed in ((text, found[0]), (spilling, found[2])):
        theirs, ours = (re.findall(r"/\*([0-9a-f]{4,5})\*/ +([^;]*);", lines) for lines in (whole, listed))
        assert len(theirs) == len(ours) > 100
        for (place, noted), (own_place, other) in zip(theirs, ours, strict=True):
            assert place == own_place
            one = re.sub(r"\(\*.*\*\)$", "", noted.strip())
            address = r"0x[0-9a-f]+$" if "`(" in one else "$^"
            assert re.sub(r"`\(.*\)$", "0x", one.strip()) == re.sub(address, "0x", other.strip())


def test_disassembling_damaged_code_is_an_error(objects: dict[str, Path]) -> None:
    data = bytearray(objects["scale_sm_90a"].read_bytes())
    start = data.index(b"\x7fELF", 1)
    data[start + 4 : start + 64] = b"\xff" * 60
    with pytest.raises(ArtifactError, match="nvdisasm refused the GPU code"):
        disassemble(bytes(data))
