"""The ledger of a program: counting, merging processes, its file."""

from __future__ import annotations

import pytest

from cutlass_aot.errors import CorruptFile
from cutlass_aot.programs.ledger import Ledger, estimated_seconds
from tests.unit.requests import request


def test_answers_and_misses_are_counted_by_request():
    ledger = Ledger()
    one, two = request(configuration=1), request(configuration=2)
    ledger.answered(one, "b", 20_000, 0.25)
    ledger.answered(one, "b", 20_000, 0.25)
    ledger.missed(two, "no kernel", 1.5)
    ledger.missed(None, "x: a raw address", 0.0)
    assert [(entry.bundle, entry.count, entry.seconds) for entry in ledger.entries.values()] == [
        ("b", 2, 0.5),
        ("", 1, 1.5),
        ("", 1, 0.0),
    ]
    assert ledger.with_unused([one.digest, two.digest, "f" * 64]).unused == ("f" * 64,)


def test_what_one_process_of_several_asked_for_is_used():
    one, two, three = request(configuration=1), request(configuration=2), request(configuration=3)
    held = [item.digest for item in (one, two, three)]
    first, second = Ledger(), Ledger()
    first.answered(one, "b", 20_000, 0.1)
    second.answered(two, "b", 20_000, 0.1)
    second.answered(one, "b", 20_000, 0.2)
    whole = Ledger()
    for part in (first, second):
        whole.merge(part.with_unused(held))
    assert whole.unused == (three.digest,)
    assert whole.entries[one.digest].count == 2
    # Each of the two processes would have compiled it.
    assert whole.entries[one.digest].saved == 2 * estimated_seconds(20_000)


def test_what_a_later_bundle_answers_is_missed_no_more():
    ledger, whole = Ledger(), Ledger()
    asked = request(configuration=1)
    ledger.missed(asked, "no kernel", 0.0)
    whole.merge(ledger)
    for one in (ledger, whole):
        answered = Ledger()
        answered.answered(asked, "b", 20_000, 0.1)
        one.merge(answered)
    ledger.answered(asked, "b", 20_000, 0.1)
    for one in (ledger, whole):
        assert (one.entries[asked.digest].bundle, one.entries[asked.digest].reason) == ("b", "")


def test_a_file_reads_as_it_was_written(tmp_path):
    ledger = Ledger()
    ledger.answered(request(configuration=1), "b", 20_000, 0.125)
    ledger.missed(request(configuration=2), "no kernel", 0.5)
    path = tmp_path / "ledger.json"
    ledger.with_unused(["e" * 64]).write(path)
    assert Ledger.read(path).to_record() == ledger.with_unused(["e" * 64]).to_record()
    assert [item.name for item in tmp_path.iterdir()] == ["ledger.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"requests": [], "unused": 3}', "{" * 100_000])
def test_another_file_is_none(tmp_path, text):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(CorruptFile, match="is not a ledger"):
        Ledger.read(path)
