"""How damaged files are made for a reader: from valid ones, mostly with digests made right again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest
from tools.fuzz.mutate import bytes_of, claiming, pack, to_json, tree_of


@dataclass(frozen=True, slots=True)
class Reader:
    """What reads one kind of file.

    Attributes:
        name: what it is called in the table.
        make: gives one input, a damaged file.
        read: reads it; may return, or raise what the package raises on purpose. A list that is returned is
            that of what is wrong.
        weight: share of the inputs.
    """

    name: str
    make: Callable[[random.Random], bytes]
    read: Callable[[bytes], object]
    weight: int


def bytes_maker(
    samples: Sequence[bytes], damage: Callable[[random.Random, bytes, bytes], bytes]
) -> Callable[[random.Random], bytes]:
    def make(source: random.Random) -> bytes:
        return damage(source, source.choice(samples), source.choice(samples))

    return make


def json_maker(samples: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    trees = [json.loads(sample) for sample in samples]
    values = [value for tree in trees for value in values_of(tree)]

    def make(source: random.Random) -> bytes:
        at = source.randrange(len(samples))
        if source.randrange(4) == 0:
            return bytes_of(source, samples[at], source.choice(samples))
        return to_json(source, tree_of(source, trees[at], values))

    return make


def packed_maker(samples: Sequence[bytes], values: Sequence[Any]) -> Callable[[random.Random], bytes]:
    trees = [msgpack.unpackb(sample) for sample in samples]

    def make(source: random.Random) -> bytes:
        at = source.randrange(len(samples))
        if source.randrange(4) == 0:
            return bytes_of(source, samples[at], source.choice(samples))
        return pack(tree_of(source, trees[at], values))

    return make


def sealed_maker(samples: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    """Of files in an envelope: the envelope itself, the bytes in it, or its contents changed and sealed."""
    envelopes = [msgpack.unpackb(sample) for sample in samples]
    bodies = [opened_body(envelope["body"]) for envelope in envelopes]
    values = [value for body in bodies for value in values_of(body)]

    def make(source: random.Random) -> bytes:
        at = source.randrange(len(samples))
        kind = source.randrange(8)
        if kind == 0:
            return bytes_of(source, samples[at], source.choice(samples))
        if kind == 1:
            return pack(tree_of(source, envelopes[at], values))
        if kind == 2:
            body = bytes_of(source, envelopes[at]["body"], envelopes[at]["body"])
            if source.randrange(20) == 0:
                body = claiming(source)
        else:
            body = closed_body(tree_of(source, bodies[at], values))
        return pack({**envelopes[at], "body": body, "sha256": digest(body)})

    return make


def opened_body(data: bytes) -> Any:
    """A body as a tree, with what is encoded once more inside (a catalog's groups) opened too."""
    body = msgpack.unpackb(data)
    if isinstance(body, dict) and isinstance(body.get("groups"), dict):
        body["groups"] = {
            word: [{"": msgpack.unpackb(item)} for item in items] for word, items in body["groups"].items()
        }
    return body


def closed_body(body: Any) -> bytes:
    groups = body.get("groups") if isinstance(body, dict) else None
    if isinstance(groups, dict):
        closed = {
            word: [pack(item[""]) if isinstance(item, dict) and "" in item else item for item in items]
            if isinstance(items, list)
            else items
            for word, items in groups.items()
        }
        body = {**body, "groups": closed}
    return pack(body)


def values_of(tree: Any) -> list[Any]:
    """Values inside a tree, to be put elsewhere."""
    inner: list[Any] = []
    level = [tree]
    while level and len(inner) < 200:
        level = [
            item
            for value in level
            for item in (
                value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            )
        ]
        inner += level[:60]
    return inner


def compressed_maker(samples: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    def make(source: random.Random) -> bytes:
        if source.randrange(3):
            return bytes_of(source, source.choice(samples), source.choice(samples))
        # A frame that is right, of much or of little.
        content = bytes_of(source, b"code" * 20, b"")
        content *= source.choice((1, 100, max((4 << 20) // (len(content) + 1), 1)))
        return compress(content, 1) + source.choice((b"", b"", b"x"))

    return make
