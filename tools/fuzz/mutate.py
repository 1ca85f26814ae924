"""Damage valid files in ways that readers have to stand: bytes, values of a tree, ELF fields, lines of text.

Everything is drawn from the random source that is handed in: equal sources give equal files.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

import msgpack

MAX_BYTES = 1 << 18
"""Most bytes of what a mutation gives; twice as many where it appends."""

_BYTES = (0, 1, 0x7F, 0x80, 0xFF, 0x20, 0x2F, 0x5B, 0x7B, 0x22, 0xC0, 0xDD, 0xDF)
_INTEGERS = (
    0, 1, -1, 2, 3, 7, 15, 16, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62,
    2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63), 1 << 26, 1 << 28, 1 << 30, (1 << 30) + 1,
)  # fmt: skip
_FLOATS = (0.0, -0.0, 1.0, -1.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    "", " ", "\0", "a", "..", "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "-", "f16", "sm_90a",
    "sm_100f", "gemm", "x86_64", "0", "1.0", "1.2.3.post4", "9" * 40, "\x1b[31m", "\u202e",
    "\U0001f4a5", "\ud7ff", "\xe9" * 50, "a" * 5000, "0" * 64, "f" * 64, "A" * 64, "sha256:" + "0" * 64,
    "nan", "inf", "None", "true", "%s%n", "{}", "[", "K", "M", "N", "tnt", "D = accum",
    "D = relu(" * 40, "f8e4m3", "(1, 2)", "128x128", "*", "[a-", "?" * 60 + "*" * 60,
)  # fmt: skip
_DEPTHS = (2, 8, 15, 16, 17, 18, 60, 250, 500, 511, 512, 700, 900, 950, 970, 980, 985, 990, 995, 1000, 1500)


def bytes_of(source: random.Random, data: bytes, other: bytes) -> bytes:
    """Bytes changed a few times: flipped, overwritten, cut, repeated, mixed with those of another file."""
    out = bytearray(data)
    for _ in range(source.choice((1, 1, 1, 2, 3, 6, 12))):
        change = source.randrange(10)
        at = source.randrange(len(out) + 1)
        length = min(source.choice((1, 1, 2, 4, 8, 16, 64, 300)), len(out) - at)
        if change == 0 and length:
            out[at] ^= 1 << source.randrange(8)
        elif change == 1 and length:
            out[at] = source.choice(_BYTES)
        elif change == 2 and length:
            out[at : at + length] = source.randbytes(length)
        elif change == 3:
            del out[at : at + length]
        elif change == 4:
            out[at:at] = out[at : at + length] * source.choice((1, 2, 3, 50))
        elif change == 5:
            out[at:] = b""
        elif change == 6:
            begin = source.randrange(len(other) + 1)
            out[at:at] = other[begin : begin + source.choice((1, 4, 30, 500))]
        elif change == 7:
            begin = source.randrange(len(other) + 1)
            out[at:] = other[begin:]
        elif change == 8:
            number = source.choice(_INTEGERS) & (2**64 - 1)
            layout = source.choice(("<B", "<H", ">H", "<I", ">I", "<Q", ">Q"))
            packed = struct.pack("<Q", number)[: struct.calcsize(layout)]
            out[at : at + len(packed)] = packed if layout[0] == "<" else packed[::-1]
        else:
            out[at:at] = bytes((source.choice(_BYTES),)) * source.choice((1, 3, 100, 4000))
        del out[MAX_BYTES:]
    return bytes(out)


def elf_of(source: random.Random, data: bytes, other: bytes) -> bytes:
    """Fields of an ELF file changed: numbers, mostly those that are offsets, sizes and counts."""
    if source.randrange(4) == 0:
        return bytes_of(source, data, other)
    out = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 3, 5))):
        # The header, the program headers and what is aligned like a table.
        end = min(len(out), source.choice((64, 64 + 56 * 4, len(out))))
        at = source.randrange(max(end // 4, 1)) * 4
        size = source.choice((2, 4, 8))
        near = (
            len(out),
            len(out) - 1,
            len(out) + 1,
            at,
            len(out) // 2,
            source.randrange(1 << 20),
            24,
            16,
            56,
        )
        number = source.choice((*_INTEGERS, *near, *near)) & ((1 << 8 * size) - 1)
        out[at : at + size] = number.to_bytes(size, "little")
    return bytes(out)


def tree_of(source: random.Random, tree: Any, others: Sequence[Any]) -> Any:
    """A copy of plain data with a few of its values exchanged, dropped, added, repeated or nested."""
    for _ in range(source.choice((1, 1, 1, 1, 2, 3, 5))):
        changed = _changed(source, tree, others)
        # What is repeated may be repeated again.
        if _is_larger(changed, MAX_BYTES):
            break
        tree = changed
    return tree


def _is_larger(tree: Any, limit: int) -> bool:
    """Whether a tree has more values and characters than that, counted no further."""
    stack, size = [tree], 0
    while stack and size <= limit:
        value = stack.pop()
        size += 1
        if isinstance(value, (str, bytes)):
            size += len(value)
        elif isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return size > limit


def _changed(source: random.Random, tree: Any, others: Sequence[Any]) -> Any:
    """One change at a random place, reached from the root so that small and large values are met alike."""
    if isinstance(tree, dict) and tree and source.randrange(8):
        key = source.choice(list(tree))
        change = source.randrange(12)
        if change == 0:
            return {k: v for k, v in tree.items() if k != key}
        if change == 1:
            return {**tree, _key(source): _value(source, tree, others)}
        if change == 2:
            return {(_key(source) if k == key else k): v for k, v in tree.items()}
        if change == 3:
            other = source.choice(list(tree))
            return {**tree, key: tree[other], other: tree[key]}
        return {**tree, key: _changed(source, tree[key], others)}
    if isinstance(tree, list) and tree and source.randrange(8):
        at = source.randrange(len(tree))
        change = source.randrange(12)
        if change == 0:
            return tree[:at] + tree[at + 1 :]
        if change == 1:
            return [*tree[:at], _value(source, tree, others), *tree[at:]]
        if change == 2:
            return tree[: at + 1] + tree[at:]
        if change == 3:
            return tree[at:] + tree[:at]
        if change == 4:
            return (tree * source.choice((2, 3, 20)))[:2000]
        return [*tree[:at], _changed(source, tree[at], others), *tree[at + 1 :]]
    if isinstance(tree, bytes) and tree and source.randrange(4):
        return bytes_of(source, tree, tree)
    if isinstance(tree, str) and tree and source.randrange(3) == 0:
        at = source.randrange(len(tree))
        return tree[:at] + source.choice((*_TEXTS, "", tree)) + tree[at + source.randrange(2) :]
    if isinstance(tree, int) and source.randrange(2):
        return tree + source.choice((-1, 1, 2, -tree, tree, 1000))
    return _value(source, tree, others)


def _key(source: random.Random) -> Any:
    return source.choice(("", "name", "path", "kind", "schema", "body", "x" * 300, "\0", "L", "M", "1"))


def _value(source: random.Random, near: Any, others: Sequence[Any]) -> Any:
    kind = source.randrange(14)
    if kind == 0:
        return source.choice((None, True, False))
    if kind <= 3:
        return source.choice(_INTEGERS)
    if kind == 4:
        return source.choice(_FLOATS)
    if kind <= 7:
        return source.choice(_TEXTS)
    if kind == 8:
        return source.randbytes(source.choice((0, 1, 31, 32, 33, 200)))
    if kind == 9:
        return source.choice(([], {}, [[]], [0] * 10, [[0, 0]] * 3, {"": None}))
    if kind == 10:
        return deep(source)
    if kind == 11 and others:
        return source.choice(others)
    if kind == 12:
        return [near] * source.choice((1, 2, 40))
    return {"path": "a", "size": source.choice(_INTEGERS), "sha256": source.choice(_TEXTS)}


def claiming(source: random.Random) -> bytes:
    """Arrays inside each other as msgpack, each of which claims as many items as there are bytes."""
    size, depth = source.choice((1 << 10, 1 << 16, 1 << 18)), source.choice((10, 100, 500, 1000))
    head = (source.choice((b"\xdd", b"\xdf")) + struct.pack(">I", size)) * depth
    return head + b"\xc0" * (size - len(head))


def deep(source: random.Random) -> Any:
    """Something nested, about as deep as readers go."""
    value: Any = source.choice((None, 0, "a", [], {}))
    lists = source.randrange(2)
    for _ in range(source.choice(_DEPTHS) + source.randrange(-3, 4)):
        value = [value] if lists else {"a": value}
    return value


def pack(tree: Any) -> bytes:
    """A tree as msgpack, whatever readers think of it; numbers that are too large go round."""
    # By hand: the package's own writer refuses what is nested deep, and numbers that are too large.
    out = bytearray()
    stack: list[Any] = [tree]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            out += b"\xdd" + struct.pack(">I", len(value))
            stack += reversed(value)
        elif isinstance(value, dict):
            out += b"\xdf" + struct.pack(">I", len(value))
            for key, item in reversed(value.items()):
                stack += (item, key)
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            out += msgpack.packb(value % 2**64)
        elif isinstance(value, str):
            out += msgpack.packb(value, unicode_errors="surrogatepass")
        else:
            out += msgpack.packb(value, use_bin_type=True)
    return bytes(out)


def to_json(source: random.Random, tree: Any) -> bytes:
    """A tree as JSON, with bytes as text; now and then with what JSON's own writer does not give."""
    text = _json(tree)
    if source.randrange(8) == 0:
        text = text.replace("1", source.choice(("1e999", "1" * 5000, "-0", "1.5", "NaN", "1" * 4300)), 1)
    if source.randrange(16) == 0:
        text = source.choice(("\ufeff", " ", "[1, ", "")) + text + source.choice((" ", "]", "\n", "x"))
    return text.encode("utf-8", "surrogatepass")


def _json(tree: Any) -> str:
    parts: list[str] = []
    stack: list[Any] = [tree]
    while stack:
        value = stack.pop()
        if isinstance(value, _Raw):
            parts.append(value)
        elif isinstance(value, (list, dict)):
            items = list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
            braces = "{}" if isinstance(value, dict) else "[]"
            inner: list[Any] = [_Raw(braces[0])]
            for number, (key, item) in enumerate(items):
                inner.append(_Raw(", " * bool(number) + (f"{json.dumps(key)}: " if key is not None else "")))
                inner.append(item)
            stack += reversed([*inner, _Raw(braces[1])])
        else:
            parts.append(json.dumps(value.decode("latin-1") if isinstance(value, bytes) else value))
    return "".join(parts)


class _Raw(str):
    """Text of the document itself."""


_WORDS = (
    "1", "-1", "0", "1.5", "nan", "inf", "-inf", "1e400", "9" * 30, "0x" + "f" * 50, "9" * 5000, "true",
    "false", '""', "[]", "{}", "[[]]", "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", '"*"',
    '"128x128"', '["f16"]', '"f16"', '"same"', '"../x"', '"tnt"', '["tnt", "nnn"]',
    "{ dtype = 'f8e8m0', block = 32 }", '"D = alpha * accum + beta * C"', "\'\'\'", '"""', '"\\u0000"',
    '"\\U0010ffff"', "[1, 'a', {}]", "{ a = 1 }", "[" * 400, "[" * 2000, "{a=" * 300,
    '"' + "a" * 3000 + '"', "a.b.c = 1", "a" + ".a" * 800 + " = 1", "[a" + ".a" * 300 + "]",
    "[[kernels]]", "[bundle]", "[select]", "[[known_bad]]",
)  # fmt: skip


def text_of(source: random.Random, data: bytes, other: bytes) -> bytes:
    """Lines and values of a TOML file, or of another text, exchanged."""
    if source.randrange(4) == 0:
        return bytes_of(source, data, other)
    lines = data.decode("utf-8", "surrogateescape").splitlines()
    strange = other.decode("utf-8", "surrogateescape").splitlines() or [""]
    for _ in range(source.choice((1, 1, 2, 3))):
        at = source.randrange(len(lines) + 1)
        here = lines[at : at + 1]
        change = source.randrange(7)
        if change == 0:
            lines[at : at + 1] = []
        elif change == 1:
            lines[at:at] = [source.choice(strange)]
        elif change == 2:
            lines[at:at] = here * source.choice((1, 2, 100))
        elif change == 3:
            lines[at:at] = [source.choice(_WORDS)]
        elif here and "=" in here[0]:
            key, _, value = here[0].partition("=")
            if change == 4:
                key = source.choice((key, "a.b", '"x"', "generator", "name", "tile", "targets", "keep")) + " "
            else:
                value = " " + source.choice((*_WORDS, f"[{value}]", f"{value},{value}", value * 3))
            lines[at] = f"{key}={value}"
    return "\n".join(lines).encode("utf-8", "surrogateescape")[: 2 * MAX_BYTES]
