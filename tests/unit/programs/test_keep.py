"""What the processes of a program keep in a folder, and what becomes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.errors import CorruptFile
from cutlass_aot.programs.record.keep import gathered
from cutlass_aot.programs.serve.ledger import Ledger
from cutlass_aot.programs.start.files import note_refusal, read_whole, refusals, write_whole
from cutlass_aot.schema.encoding import encode
from cutlass_aot.schema.requests.recording import recording_from_bytes, recording_to_bytes
from cutlass_aot.schema.requests.request import Request
from tests.support.requests import request


def keep(folder: Path, kept: Request, data: bytes) -> None:
    """As a process of a program does."""
    path = folder / kept.digest
    write_whole(path.with_suffix(".object"), data)
    write_whole(path.with_suffix(".request"), kept.encoded())
    write_whole(path.with_suffix(".result"), encode({"call": None}))


def test_what_is_large_makes_several_recordings(tmp_path):
    requests = [request(configuration=number) for number in range(5)]
    for number, one in enumerate(requests):
        keep(tmp_path, one, bytes(100 * (number + 1)))
    note_refusal(tmp_path, "x: a raw address")
    recordings = list(gathered(tmp_path, most=500))
    assert len(recordings) > 1
    assert [recording.refusals for recording, _ in recordings] == [
        ("x: a raw address",),
        *[()] * (len(recordings) - 1),
    ]
    for recording, objects in recordings:
        assert sum(map(len, objects.values())) <= 500
        assert recording_from_bytes(recording_to_bytes(recording, objects), "it") == (recording, objects)
    found = {
        item.request.digest: objects[item.request.digest]
        for recording, objects in recordings
        for item in recording.requests
    }
    assert found == {one.digest: bytes(100 * (number + 1)) for number, one in enumerate(requests)}


def test_one_that_is_larger_than_all_has_a_recording_of_its_own(tmp_path):
    for number in range(3):
        keep(tmp_path, request(configuration=number), bytes(100))
    assert [len(recording.requests) for recording, _ in gathered(tmp_path, most=50)] == [1, 1, 1]


def test_nothing_kept_is_one_empty_recording(tmp_path):
    note_refusal(tmp_path, "why")
    ((recording, objects),) = gathered(tmp_path)
    assert (recording.requests, recording.refusals, objects) == ((), ("why",), {})


def test_a_request_that_is_not_whole_is_left_out(tmp_path):
    keep(tmp_path, request(configuration=1), b"object")
    keep(tmp_path, request(configuration=2), b"object")
    (tmp_path / f"{request(configuration=2).digest}.result").unlink()
    ((recording, _),) = gathered(tmp_path)
    assert [item.request.configuration for item in recording.requests] == [1]


def test_a_reason_is_noted_once_and_may_have_any_letters(tmp_path):
    for reason in ("b", "a", "b", "\udcff"):
        note_refusal(tmp_path, reason)
    assert refusals(tmp_path) == ["\\udcff", "a", "b"]


def test_what_is_no_refusal_is_refused(tmp_path):
    (tmp_path / "x.refusal").write_bytes(encode([1]))
    with pytest.raises(CorruptFile, match="a refusal is malformed"):
        refusals(tmp_path)


def test_a_file_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "file"
    write_whole(path, bytes(11))
    assert read_whole(path, 11) == bytes(11)
    with pytest.raises(CorruptFile, match="more than 10 bytes"):
        read_whole(path, 10)


_WORKERS = """
import multiprocessing, os, sys
from pathlib import Path
from cutlass_aot.programs.serve import serve

server = serve.Server()
serve._write_ledger_at_the_end(server, Path(sys.argv[1]))
server._ledger.missed(None, "parent", 0.0)

def work(reason):
    server._ledger.missed(None, reason, 0.0)

context = multiprocessing.get_context("fork")
workers = [context.Process(target=work, args=(f"worker {number}",)) for number in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
if os.fork() == 0:
    work("child")
    sys.exit()
os.wait()
"""


def test_processes_that_are_forked_have_ledgers_of_their_own(tmp_path):
    subprocess.run([sys.executable, "-c", _WORKERS, tmp_path], timeout=60, check=True)
    noted = sorted(
        sorted(Ledger.from_bytes(path.read_bytes(), "it").entries) for path in tmp_path.glob("*.json")
    )
    assert noted == [["child"], ["parent"], ["worker 0"], ["worker 1"]]
