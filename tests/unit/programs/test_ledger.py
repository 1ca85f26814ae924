"""The ledger of a program: counting, merging processes, its file."""

from __future__ import annotations

import pytest

from cutlass_aot.errors import CorruptFile
from cutlass_aot.programs.serve.ledger import Ledger, estimated_seconds
from tests.support.requests import request


def test_answers_and_misses_are_counted_by_request():
    ledger = Ledger()
    one, two = request(configuration=1), request(configuration=2)
    ledger.answered(one, "b", 20_000, 0.25)
    ledger.answered(one, "b", 20_000, 0.25)
    ledger.missed(two, "no kernel", 1.5)
    ledger.missed(None, "x: a raw address", 0.0)
    assert [(entry.bundle, entry.count, entry.seconds) for entry in ledger.entries.values()] == [
        ("b", 2, 0.5),
        ("", 1, 0.0),
        ("", 1, 0.0),
    ]
    found = [(entry.missed, entry.compiling) for entry in ledger.entries.values()]
    assert found == [(0, 0), (1, 1.5), (1, 0)]
    assert ledger.with_unused([one.digest, two.digest, "f" * 64]).unused == ("f" * 64,)


def test_what_one_process_of_several_requested_is_used():
    one, two, three = request(configuration=1), request(configuration=2), request(configuration=3)
    held = [item.digest for item in (one, two, three)]
    first, second = Ledger(), Ledger()
    first.answered(one, "b", 20_000, 0.1)
    second.answered(two, "b", 20_000, 0.1)
    second.answered(one, "b", 20_000, 0.2)
    whole = Ledger()
    for ledger in (first, second):
        whole.merge(ledger.with_unused(held))
    assert whole.unused == (three.digest,)
    assert whole.entries[one.digest].count == 2
    # Each of the two processes would have compiled it.
    assert whole.entries[one.digest].saved == 2 * estimated_seconds(20_000)


def test_a_request_that_one_process_compiled_and_another_had_answered_counts_as_both():
    one, other = Ledger(), Ledger()
    missed = request(configuration=1)
    one.missed(missed, "no kernel", 7.0)
    other.answered(missed, "b", 20_000, 0.1)
    for first, second in ((one, other), (other, one)):
        whole = Ledger()
        whole.merge(first)
        whole.merge(second)
        entry = whole.entries[missed.digest]
        assert (entry.bundle, entry.reason, entry.count, entry.missed) == ("b", "no kernel", 2, 1)
        assert (entry.seconds, entry.compiling) == (0.1, 7.0)


def test_a_file_reads_as_it_was_written():
    ledger = Ledger()
    ledger.answered(request(configuration=1), "b", 20_000, 0.125)
    ledger.missed(request(configuration=2), "no kernel", 0.5)
    ledger = ledger.with_unused(["e" * 64])
    assert Ledger.from_bytes(ledger.to_bytes(), "x.json").to_record() == ledger.to_record()


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"requests": [], "unused": 3}', "{" * 100_000,
        '{"requests": {"x": {"callable": "", "target": "", "bundle": "", "count": Infinity, "seconds": 0,'
        ' "saved": 0, "missed": 0, "compiling": 0, "reason": ""}}, "unused": []}',
    ],
)  # fmt: skip
def test_another_file_is_none(text):
    with pytest.raises(CorruptFile, match=r"x\.json is (malformed|not readable JSON)"):
        Ledger.from_bytes(text.encode(), "x.json")
