"""Kernel objects: host code and GPU code taken apart and back, symbols by name, every damage noticed."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.builder.link import kernel_object
from cutlass_aot.builder.link.kernel_object import KIND, KernelObject, NoGpuCode
from cutlass_aot.errors import ArtifactError, CorruptFile, SchemaTooNew
from cutlass_aot.schema.encoding import decode, encode
from tests.support.flips import flipped, positions

MAGIC = b"P\xedU\xba"
CODE = MAGIC + bytes(range(256)) + b'\\\\5C\\n"quoted"\\'
SLOT = "@cutlass_aot_code_k"
TEXTS = st.text(max_size=200)
CODES = st.binary(max_size=200)


def escaped(data: bytes) -> str:
    """Bytes as LLVM prints them: printable ones as they are, a backslash twice, the others in hexadecimal."""
    plain = set((string.ascii_letters + string.digits + string.punctuation + " ").encode()) - set(b'"\\')
    return "".join(
        chr(byte) if byte in plain else "\\\\" if byte == ord("\\") else f"\\{byte:02X}" for byte in data
    )


def constant(code: bytes, name: str = "@kernels_binary", words: str = "internal constant") -> str:
    return f'{name} = {words} [{len(code)} x i8] c"{escaped(code)}"'


def module(*lines: str) -> str:
    """A text as the DSL exports one, for the host that it was exported on."""
    head = (
        "; ModuleID = 'LLVMDialectModule'",
        'source_filename = "LLVMDialectModule"',
        'target datalayout = "e-m:e-i64:64-n8:16:32:64-S128"',
        'target triple = "x86_64-unknown-linux-gnu"',
    )
    return "\n".join((*head, *lines)) + "\n"


def kernel(*lines: str, code: bytes = CODE, name: str = "@kernels_binary") -> str:
    return module(
        "",
        constant(code, name),
        *lines,
        "",
        "define i32 @__tvm_ffi_k() {",
        f"  %1 = call i32 @load(ptr null, ptr nonnull {name}, ptr {name})",
        "  ret i32 %1",
        "}",
        "",
        "declare i32 @load(ptr, ptr, ptr)",
    )


def test_the_gpu_code_is_taken_out_and_a_slot_left_for_it() -> None:
    item = KernelObject.from_llvm(kernel(), "k")
    assert item.gpu_code == CODE
    assert item.host_code == (
        "; ModuleID = 'LLVMDialectModule'\n"
        'source_filename = "LLVMDialectModule"\n'
        "\n"
        "@cutlass_aot_code_k = global [2 x i64] zeroinitializer, align 8\n"
        "\n"
        "define i32 @__tvm_ffi_k() {\n"
        "  %1 = call i32 @load(ptr null, ptr nonnull @cutlass_aot_code_k, ptr @cutlass_aot_code_k)\n"
        "  ret i32 %1\n"
        "}\n"
        "\n"
        "declare i32 @load(ptr, ptr, ptr)\n"
    )


def test_what_says_the_host_makes_no_difference() -> None:
    elsewhere = kernel().replace("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
    elsewhere = elsewhere.replace("e-m:e-i64:64-n8:16:32:64-S128", "e-m:e-i64:64-i128:128-n32:64-S128")
    assert elsewhere != kernel()
    assert KernelObject.from_llvm(elsewhere, "k") == KernelObject.from_llvm(kernel(), "k")
    assert "target" not in KernelObject.from_llvm(kernel(), "k").host_code


@pytest.mark.parametrize("words", ["internal constant", "private unnamed_addr constant", "constant"])
@pytest.mark.parametrize("tail", ["", ", align 8", ', section ".nv_fatbin", align 8'])
def test_the_constant_is_found_by_what_it_holds(words: str, tail: str) -> None:
    text = kernel().replace(constant(CODE), constant(CODE, words=words) + tail)
    assert KernelObject.from_llvm(text, "k") == KernelObject.from_llvm(kernel(), "k")


@pytest.mark.parametrize("other", [b"", b"TypeError\0", b"\x7fELF\2", MAGIC[1:], b"see P\xedU\xba"])
def test_other_constants_stay(other: bytes) -> None:
    line = constant(other, "@words", "private constant")
    item = KernelObject.from_llvm(kernel(line), "k")
    assert item.gpu_code == CODE
    assert line in item.host_code.splitlines()


def test_no_gpu_code_is_an_error() -> None:
    with pytest.raises(NoGpuCode, match=r"^k: it launches no kernel, so that there is nothing to prebuild$"):
        KernelObject.from_llvm(module("define i32 @__tvm_ffi_k() {", "  ret i32 0", "}"), "k")


@pytest.mark.parametrize("called", ["@_cudaLaunchKernelEx(ptr %1)", "@_cudaLibraryLoadData(ptr %1)"])
def test_a_launch_without_gpu_code_is_another_error(called: str) -> None:
    text = module("define i32 @__tvm_ffi_k() {", f"  %1 = call i32 {called}", "  ret i32 %1", "}")
    with pytest.raises(
        ArtifactError, match="k: its host code holds 0 fat binaries of GPU code; expected"
    ) as error:
        KernelObject.from_llvm(text, "k")
    assert not isinstance(error.value, NoGpuCode)
    with pytest.raises(ArtifactError, match="holds 0 fat binaries"):
        KernelObject.from_llvm("", "k")


def test_gpu_code_of_two_modules_is_an_error() -> None:
    with pytest.raises(ArtifactError, match=r"^k: its host code holds 2 fat binaries of GPU code; expected"):
        KernelObject.from_llvm(kernel(constant(MAGIC + b"more", "@second")), "k")


def test_a_constant_of_another_length_than_it_says_is_an_error() -> None:
    text = kernel().replace(f"[{len(CODE)} x i8]", f"[{len(CODE) + 1} x i8]")
    with pytest.raises(ArtifactError, match=f"k: its GPU code has {len(CODE)} bytes; .* {len(CODE) + 1}"):
        KernelObject.from_llvm(text, "k")


@pytest.mark.parametrize(
    "name", ["@kernels_binary", "@kernels.binary-1$", '@"kernels binary"', '@"(a) + [b]*"', "@0", "@a.b"]
)
def test_any_name_of_the_constant_is_replaced(name: str) -> None:
    item = KernelObject.from_llvm(kernel(name=name), "k")
    assert item == KernelObject.from_llvm(kernel(), "k")
    assert name not in item.host_code


def test_names_that_begin_like_the_constants_stay() -> None:
    names = [f"@kernels_binary{more}" for more in ("2", ".1", "_size", "-x", "$", "é")]
    names += ['@"kernels_binary"', '@"kernels_binary two"', "@kernels", "@my.kernels_binary"]
    lines = [f"{name} = internal global i64 0" for name in names]
    item = KernelObject.from_llvm(kernel(*lines), "k")
    assert set(lines) < set(item.host_code.splitlines())
    assert item.host_code.count(SLOT) == 3


def test_a_double_backslash_is_one_byte_whatever_follows() -> None:
    for tail, data in (
        (r"\\", b"\\"),
        (r"\\41", b"\\41"),
        (r"\\\41", b"\\A"),
        (r"\\\\41", b"\\\\41"),
        (r"\5C41", b"\\41"),
        (r"\5Cx41\0A", b"\\x41\n"),
        (r"\0041", b"\x0041"),
        (r"\ff\fF", b"\xff\xff"),
    ):
        code = MAGIC + data
        text = kernel().replace(
            constant(CODE), f'@kernels_binary = constant [{len(code)} x i8] c"P\\EDU\\BA{tail}"'
        )
        assert KernelObject.from_llvm(text, "k").gpu_code == code, tail


@given(CODES)
def test_any_gpu_code_comes_out_as_it_went_in(tail: bytes) -> None:
    assert KernelObject.from_llvm(kernel(code=MAGIC + tail), "k").gpu_code == MAGIC + tail


def test_symbols_of_a_kernel() -> None:
    undefined, defined = KernelObject.from_llvm(kernel(), "k").symbols()
    assert undefined == {"load"}
    assert defined == {"__tvm_ffi_k", "cutlass_aot_code_k"}


@pytest.mark.parametrize(
    ("line", "undefined", "defined"),
    [
        ("define void @f() {", "", "f"),
        ("define dso_local noundef i32 @f(ptr %0) local_unnamed_addr #0 {", "", "f"),
        ("define linkonce_odr { i32, ptr } @f() comdat {", "", "f"),
        ("define weak void @f() {", "", "f"),
        ("define internal fastcc void @f(ptr %0, i32 range(i32 2, 8) %1) {", "", ""),
        ("define private void @f() {", "", ""),
        ("define hidden void @f() {", "", ""),
        ('define void @"f(int) x"() {', "", "f(int) x"),
        ("define void @f() personality ptr @g {", "", "f"),
        ("declare void @f(ptr)\n; call void @f(", "f", ""),
        ('declare void @"a b"(ptr)\n; call void @"a b"(', "a b", ""),
        ("declare i32 @unused(ptr) local_unnamed_addr", "", ""),
        ("declare i32 @f(ptr)\n@f2 = internal global ptr @f1", "", ""),
        ("declare void @llvm.memcpy.p0.p0.i64(ptr)\n; call void @llvm.memcpy.p0.p0.i64(", "", ""),
        ("@v = global i32 0", "", "v"),
        ("@v = dso_local local_unnamed_addr global i32 0", "", "v"),
        ("@v = constant [1 x i8] zeroinitializer", "", "v"),
        ("@v = thread_local(localexec) global i32 0", "", "v"),
        ('@"v w" = weak_odr global i32 0', "", "v w"),
        ("@v = alias void (), ptr @f", "", "v"),
        ("@v = internal alias void (), ptr @f", "", ""),
        ("@v = internal global ptr undef", "", ""),
        ("@v = private unnamed_addr constant [4 x i8] zeroinitializer", "", ""),
        ("@v = external global i32", "v", ""),
        ("@v = external local_unnamed_addr constant i32", "v", ""),
        ("@v = extern_weak global i32", "v", ""),
        ("@llvm.global_dtors = appending global [0 x ptr] []", "", ""),
        ('@v = private constant [14 x i8] c"define @f() {\\00"', "", ""),
        ("  call void @f()", "", ""),
        ("; define void @f() {", "", ""),
    ],
)
def test_symbols_by_how_they_are_declared(line: str, undefined: str, defined: str) -> None:
    found = KernelObject(module(line), b"").symbols()
    assert found == (frozenset({undefined} - {""}), frozenset({defined} - {""}))


@given(TEXTS, CODES)
def test_what_is_written_is_read_back(host_code: str, gpu_code: bytes) -> None:
    item = KernelObject(host_code, gpu_code)
    data = item.to_bytes()
    assert KernelObject.from_bytes(data) == item
    # Canonical: what is read and written again is the same file, and nothing else is that object's file.
    assert KernelObject.from_bytes(data).to_bytes() == data
    assert data == encode(decode(data, "the object"))
    record = decode(data, "the object")
    assert list(record) == ["gpu_code", "host_code", "kind", "schema"]


@given(st.tuples(TEXTS, CODES), st.tuples(TEXTS, CODES))
def test_objects_that_differ_have_bytes_that_differ(one: tuple[str, bytes], other: tuple[str, bytes]) -> None:
    assert (KernelObject(*one).to_bytes() == KernelObject(*other).to_bytes()) == (one == other)


def test_every_truncation_is_corrupt() -> None:
    data = KernelObject.from_llvm(kernel(), "k").to_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptFile):
            KernelObject.from_bytes(data[:length])
    with pytest.raises(CorruptFile):
        KernelObject.from_bytes(data + b"\0")


@given(st.data())
def test_damage_is_noticed_or_gives_another_object(data: st.DataObject) -> None:
    content = bytearray(KernelObject.from_llvm(kernel(), "k").to_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=6)):
        content[place] = data.draw(st.integers(0, 255))
    try:
        item = KernelObject.from_bytes(bytes(content))
    except (CorruptFile, SchemaTooNew):
        return
    assert isinstance(item.host_code, str)
    assert isinstance(item.gpu_code, bytes)
    item.symbols()


@given(st.binary(max_size=300))
def test_other_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        KernelObject.from_bytes(data)


def test_a_flipped_bit_never_goes_unseen() -> None:
    whole = KernelObject.from_llvm(kernel(), "k")
    data = whole.to_bytes()
    for position in positions(len(data)):
        try:
            assert KernelObject.from_bytes(flipped(data, position)) != whole
        except (CorruptFile, SchemaTooNew):
            continue


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"kind": "cutlass-aot artifact"},
            CorruptFile,
            "the object is not a 'cutlass-aot kernel object' file",
        ),
        ({"kind": None}, CorruptFile, "the object is not a"),
        ({"schema": None}, CorruptFile, "the object"),
        ({"schema": 0}, CorruptFile, "the object"),
        ({"schema": kernel_object.SCHEMA + 1}, SchemaTooNew, "the object"),
        ({"host_code": b"text"}, CorruptFile, "host_code: found bytes, expected text"),
        ({"host_code": None}, CorruptFile, r"_code: found .*, expected (text|bytes)"),
        ({"gpu_code": "text"}, CorruptFile, r"_code: found .*, expected (text|bytes)"),
        ({"gpu_code": None}, CorruptFile, r"_code: found .*, expected (text|bytes)"),
    ],
)
def test_what_is_no_kernel_object(change: dict[str, object], error: type[Exception], message: str) -> None:
    record = {"kind": KIND, "schema": kernel_object.SCHEMA, "host_code": "", "gpu_code": b""}
    assert KernelObject.from_bytes(encode(record)) == KernelObject("", b"")
    with pytest.raises(error, match=message):
        KernelObject.from_bytes(encode({**record, **change}))
    for name in change:
        with pytest.raises(CorruptFile):
            KernelObject.from_bytes(encode({key: value for key, value in record.items() if key != name}))


def test_an_object_beyond_the_bound_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = KernelObject("", bytes(100)).to_bytes()
    monkeypatch.setattr(kernel_object, "MAX_OBJECT_BYTES", len(data))
    assert KernelObject.from_bytes(data).gpu_code == bytes(100)
    monkeypatch.setattr(kernel_object, "MAX_OBJECT_BYTES", len(data) - 1)
    with pytest.raises(CorruptFile, match=f"has {len(data)} bytes; at most {len(data) - 1} are read"):
        KernelObject.from_bytes(data)
