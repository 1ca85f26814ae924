"""Which groups share code and libraries, and how these are made: in time, once, and for every host."""

from __future__ import annotations

import errno
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.builder.events import Event, Linked, Linking
from cutlass_aot.builder.link import libraries as link_groups
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.link.libraries import Libraries
from cutlass_aot.builder.link.packing import KERNELS_A_LIBRARY, KERNELS_A_PACK, libraries_of, pack
from cutlass_aot.bundle.plan import GroupPlan
from cutlass_aot.errors import LinkError, StoreError
from cutlass_aot.schema.bundles.group_index import CodeSpan, KernelEntry
from cutlass_aot.schema.compression import decompressed
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import Facts
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.store.store import Store
from cutlass_aot.store.upstream.stores import UpstreamDirectory
from tests.support.kernels import gemm

GROUPS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.tuples(st.sampled_from(["sm_80", "sm_90a"]), st.integers(1, 2 * KERNELS_A_PACK)),
    max_size=20,
)


def libraries_for(count: int) -> int:
    """How many libraries a pack of so many kernels has, at the least."""
    return -(-count // KERNELS_A_LIBRARY)


@given(GROUPS)
def test_every_group_is_in_one_pack_of_its_target(groups):
    packs = pack(groups)
    assert sorted(name for names in packs.values() for name in names) == sorted(groups)
    for library, names in packs.items():
        assert {groups[name][0] for name in names} == {library.rpartition("-")[0]}
        assert len(names) == 1 or sum(groups[name][1] for name in names) <= KERNELS_A_PACK


@given(GROUPS, st.randoms())
def test_the_order_of_groups_does_not_matter(groups, random):
    shuffled = list(groups.items())
    random.shuffle(shuffled)
    assert pack(dict(shuffled)) == pack(groups)


@given(GROUPS)
def test_no_two_neighbours_would_fit_into_one(groups):
    packs = pack(groups)
    for target in ("sm_80", "sm_90a"):
        libraries = [names for library, names in packs.items() if library.startswith(f"{target}-")]
        for first, second in itertools.pairwise(libraries):
            assert sum(groups[name][1] for name in first) + groups[second[0]][1] > KERNELS_A_PACK


@given(st.integers(1, 5 * KERNELS_A_LIBRARY))
def test_libraries_are_about_equal_and_none_is_larger_than_it_may_be(count):
    kernels = some(count)
    libraries = libraries_of("pack", kernels)
    assert [kernel for own in libraries.values() for kernel in own] == kernels
    sizes = {len(own) for own in libraries.values()}
    assert max(sizes) <= KERNELS_A_LIBRARY
    assert max(sizes) - min(sizes) <= 1
    assert len(libraries) == libraries_for(count)


class Broken:
    """A linker on a disk that fails."""

    fingerprint = "0"

    def link_launcher(self, output, cache):
        raise OSError(errno.EIO, "Input/output error", str(output))


def test_a_disk_that_fails_is_an_error_that_says_so(tmp_path):
    store = Store(tmp_path / "store")
    with (
        Libraries([gemm()], {"x86_64": Broken()}, store, tmp_path, print, 1) as libraries,
        pytest.raises(StoreError, match=r"cannot link libraries in .*: Input/output error"),
    ):
        libraries.launchers()


HOSTS = ("aarch64", "x86_64")
BATCH = link_groups._HOST_CODES_A_BATCH
FACTS = Facts("sm_90a", "12.9", 1, 0, 0, 1)


class Linker:
    """A compiler and linker that is quick, and remembers what was requested."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.fingerprint = f"for {host}"
        self.batches: list[list[str]] = []
        self.linked: list[list[str]] = []
        self.launchers = 0
        self.refuses = ""
        self._lock = threading.Lock()

    def compile(self, texts: Mapping[str, str], directory: Path, cache: Path) -> dict[str, Path]:
        with self._lock:
            self.batches.append(list(texts))
        if self.refuses in texts:
            raise LinkError(f"the compiler refuses {self.refuses}")
        compiled = {symbol: directory / f"{symbol}-{self.host}.o" for symbol in texts}
        for symbol, path in compiled.items():
            assert not path.exists()
            path.write_text(f"{texts[symbol]} for {self.host}\n")
        return compiled

    def link(self, compiled: Mapping[str, Path], output: Path, cache: Path) -> None:
        with self._lock:
            self.linked.append(sorted(compiled))
        output.write_text("".join(compiled[symbol].read_text() for symbol in sorted(compiled)))

    def link_launcher(self, output: Path, cache: Path) -> None:
        with self._lock:
            self.launchers += 1
        output.write_text(f"launcher for {self.host}")


class Made:
    """Everything that comes out of one making."""

    def __init__(self, libraries: Libraries, kernels: Sequence[Kernel], objects: Mapping[str, str]) -> None:
        self.entries = [
            KernelEntry(kernel, objects[kernel.symbol], FACTS, {}, *libraries.entry(kernel))
            for kernel in kernels
        ]
        self.plans: list[GroupPlan] = libraries.groups(self.entries)
        self.launchers = libraries.launchers()
        self.keys = libraries.store_keys()
        # The workspace is gone afterwards.
        self.files = {
            file.sha256: file.path.read_bytes()
            for plan in self.plans
            for file in (plan.code, *(file for some in plan.libraries.values() for file in some))
        } | {file.sha256: file.path.read_bytes() for file in self.launchers.values()}

    def content(self, sha256: str) -> bytes:
        """An unpacked file, checked against its digest."""
        assert digest(self.files[sha256]) == sha256
        return decompressed(self.files[sha256], 1 << 20)


class Workshop:
    """A store and linkers, which several makings share."""

    def __init__(self, root: Path, hosts: Iterable[str] = HOSTS, threads: int = 2) -> None:
        self.store = Store(root / "store")
        self.linkers = {host: Linker(host) for host in hosts}
        self.threads = threads
        self.told: list[Event] = []

    def put(self, kernel: Kernel, code: bytes = b"") -> str:
        """Keep an object, as compiling a kernel leaves it."""
        item = KernelObject(f"host code of {kernel.symbol}", code or f"GPU code of {kernel.symbol}".encode())
        return self.store.put_blob(item.to_bytes())

    @contextmanager
    def making(self, kernels: Iterable[Kernel]) -> Iterator[Libraries]:
        # For whoever looks at one making alone.
        for linker in self.linkers.values():
            linker.batches, linker.linked, linker.launchers = [], [], 0
        self.told = []
        linkers: Any = self.linkers
        with (
            self.store.workspace() as workspace,
            Libraries(kernels, linkers, self.store, workspace, self.told.append, self.threads) as libraries,
        ):
            yield libraries

    def make(self, kernels: Sequence[Kernel], *, fresh: bool = True, codes: Sequence[bytes] = ()) -> Made:
        """Everything of some kernels, whose objects come in the order given."""
        with self.making(kernels) as libraries:
            objects = {}
            for kernel, code in itertools.zip_longest(kernels, codes, fillvalue=b""):
                objects[kernel.symbol] = self.put(kernel, code)
                libraries.add(kernel, objects[kernel.symbol], fresh)
            return Made(libraries, kernels, objects)

    def work(self) -> dict[str, tuple[int, int, int]]:
        """How many host codes were compiled, libraries and launchers linked in the last making, by host."""
        return {
            host: (sum(map(len, linker.batches)), len(linker.linked), linker.launchers)
            for host, linker in self.linkers.items()
        }


def some(count: int, layouts: str = "tnt", **changes: Any) -> list[Kernel]:
    """Kernels of one group."""
    return [gemm(layouts=layouts, design={"family": f"F{number:03}"}, **changes) for number in range(count)]


def eventually(holds: Callable[[], bool]) -> None:
    begin = time.monotonic()
    while not holds():
        assert time.monotonic() - begin < 120
        time.sleep(0.01)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_host_code_is_compiled_in_batches_while_kernels_come_in(workshop: Workshop) -> None:
    kernels = some(BATCH + 3)
    symbols = [kernel.symbol for kernel in kernels]
    linkers = workshop.linkers.values()
    with workshop.making(kernels) as libraries:
        for number, kernel in enumerate(kernels):
            libraries.add(kernel, workshop.put(kernel), True)
            begun = (number + 1) // BATCH if number + 1 < len(kernels) else 2
            # Nothing waits for the last kernel but the last batch and the linker.
            eventually(lambda begun=begun: all(len(linker.batches) == begun for linker in linkers))
            if number + 1 < len(kernels):
                assert not any(linker.linked for linker in linkers)
        libraries.launchers()
        eventually(lambda: all(linker.linked for linker in linkers))
    expected = [symbols[:BATCH], symbols[BATCH:]]
    for linker in linkers:
        assert sorted(linker.batches) == sorted(expected)
        assert linker.linked == [sorted(symbols)]


@pytest.mark.parametrize("threads", [1, 4])
def test_nothing_is_compiled_twice(tmp_path: Path, threads: int) -> None:
    """Several libraries at a time, also where one thread does everything."""
    workshop = Workshop(tmp_path, threads=threads)
    kernels = [*some(100), *some(100, "nnt"), *some(30, "ttt"), *some(5, target="sm_100a")]
    random.Random(4).shuffle(kernels)
    made = workshop.make(kernels)
    for linker in workshop.linkers.values():
        requested = Counter(symbol for batch in linker.batches for symbol in batch)
        assert requested == Counter(kernel.symbol for kernel in kernels)
        assert max(map(len, linker.batches)) <= BATCH
        assert sorted(symbol for own in linker.linked for symbol in own) == sorted(requested)
        assert linker.launchers == 1
    assert len({plan.code.name for plan in made.plans}) == 4


def test_every_library_has_the_host_code_of_its_kernels_for_its_host(workshop: Workshop) -> None:
    kernels = [*some(3), *some(2, "nnt"), *some(2, target="sm_100a")]
    made = workshop.make(kernels)
    assert len(made.plans) == 3
    for plan in made.plans:
        assert sorted(plan.libraries) == sorted(HOSTS)
        for host, own in plan.libraries.items():
            (library,) = own
            lines = made.content(library.sha256).decode().splitlines()
            assert all(line.endswith(f" for {host}") for line in lines)
            for entry in plan.entries:
                assert f"host code of {entry.kernel.symbol} for {host}" in lines
            assert library.name == plan.code.name
    assert sorted(made.launchers) == sorted(HOSTS)
    for host, launcher in made.launchers.items():
        assert made.content(launcher.sha256) == f"launcher for {host}".encode()
    listed = sorted(entry.kernel.digest for plan in made.plans for entry in plan.entries)
    assert listed == sorted(kernel.digest for kernel in kernels)


def test_code_is_packed_once_and_equal_code_shared(workshop: Workshop) -> None:
    kernels = [*some(4), *some(4, "nnt")]
    codes = [b"one", b"another", b"one", b"third" * 100, b"another", b"one", b"fourth", b"third" * 100]
    made = workshop.make(kernels, codes=codes)
    (sha256,) = {plan.code.sha256 for plan in made.plans}
    whole = made.content(sha256)
    assert len(whole) == sum(map(len, set(codes)))
    places: dict[bytes, CodeSpan] = {}
    for entry, code in zip(made.entries, codes, strict=True):
        span = entry.code
        assert whole[span.offset : span.offset + span.size] == code
        assert span.sha256 == digest(code)
        assert places.setdefault(code, span) == span


def test_code_lies_in_the_order_of_its_kernels(workshop: Workshop) -> None:
    """One group after the other, each by name: what is alike is close, and equal input gives equal bytes."""
    kernels = [*some(5), *some(5, "nnt")]
    made = workshop.make(kernels)
    offsets = {entry.kernel.symbol: entry.code.offset for entry in made.entries}
    in_order = [
        kernel
        for plan in made.plans
        for kernel in sorted(
            (entry.kernel for entry in plan.entries), key=lambda item: (item.name, item.digest)
        )
    ]
    expected = list(
        itertools.accumulate((len(f"GPU code of {kernel.symbol}") for kernel in in_order), initial=0)
    )
    assert [offsets[kernel.symbol] for kernel in in_order] == expected[:-1]


def test_a_large_group_has_several_libraries_and_one_code(workshop: Workshop) -> None:
    kernels = some(300)
    made = workshop.make(kernels)
    (plan,) = made.plans
    pieces = libraries_for(300)
    assert pieces > 10
    for host, linker in workshop.linkers.items():
        assert len(linker.linked) == pieces
        assert [library.name for library in plan.libraries[host]] == [
            f"{plan.code.name}.{n}" for n in range(pieces)
        ]
    whole = made.content(plan.code.sha256)
    sizes: Counter[int] = Counter()
    for entry in plan.entries:
        code = whole[entry.code.offset : entry.code.offset + entry.code.size]
        assert code == f"GPU code of {entry.kernel.symbol}".encode()
        sizes[entry.library] += 1
        for host in HOSTS:
            text = made.content(plan.libraries[host][entry.library].sha256).decode()
            assert f"host code of {entry.kernel.symbol} for {host}\n" in text
    assert sorted(sizes) == list(range(pieces))
    assert set(sizes.values()) == {300 // pieces, -(-300 // pieces)}
    told = [event for event in workshop.told if isinstance(event, Linked)]
    assert sorted((event.library, event.kernels, event.host) for event in told) == sorted(
        (f"{plan.code.name}.{number}", sizes[number], host) for number in range(pieces) for host in HOSTS
    )


def test_the_order_in_which_kernels_come_makes_no_difference(tmp_path: Path) -> None:
    kernels = [*some(20), *some(140, "nnt"), *some(3, target="sm_100a")]
    shuffled = list(kernels)
    random.Random(11).shuffle(shuffled)
    one, other = Workshop(tmp_path / "1").make(kernels), Workshop(tmp_path / "2").make(shuffled)
    assert one.files == other.files
    assert one.keys == other.keys
    assert sorted(one.entries, key=str) == sorted(other.entries, key=str)
    assert [plan.name for plan in one.plans] == [plan.name for plan in other.plans]


def test_what_the_store_has_is_not_made_again(workshop: Workshop) -> None:
    kernels = [*some(20), *some(140, "nnt")]
    first = workshop.make(kernels)
    assert workshop.work() == dict.fromkeys(HOSTS, (160, libraries_for(20) + libraries_for(140), 1))
    assert all(event.seconds is not None for event in workshop.told if isinstance(event, Linked))
    again = workshop.make(kernels, fresh=False)
    assert workshop.work() == dict.fromkeys(HOSTS, (0, 0, 0))
    assert (again.files, again.keys, again.entries) == (first.files, first.keys, first.entries)
    told = [event for event in workshop.told if isinstance(event, Linked)]
    assert len(told) == (libraries_for(20) + libraries_for(140)) * len(HOSTS)
    assert all(event.seconds is None for event in told)
    assert {event.size for event in told} <= {len(data) for data in first.files.values()}
    for key in again.keys:
        assert workshop.store.has_record("library", key)


def test_a_new_kernel_makes_its_own_library_and_pack_again_alone(workshop: Workshop) -> None:
    kernels = [*some(20), *some(20, target="sm_100a")]
    first = workshop.make(kernels)
    workshop.make(kernels, fresh=False)
    with workshop.making([*kernels, *some(21)[20:]]) as libraries:
        for kernel in [*kernels, *some(21)[20:]]:
            libraries.add(kernel, workshop.put(kernel), fresh=kernel not in kernels)
        keys = libraries.store_keys()
    assert workshop.work() == dict.fromkeys(HOSTS, (11, 1, 0))
    # The code and the two libraries of the other target, the first library of this one, and the launchers.
    assert len(set(keys) & set(first.keys)) == 1 + 4 * len(HOSTS)


def test_an_object_that_changed_makes_its_library_again(workshop: Workshop) -> None:
    kernels = some(3)
    first = workshop.make(kernels)
    second = workshop.make(kernels, codes=[b"changed"])
    assert workshop.work() == dict.fromkeys(HOSTS, (3, 1, 0))
    assert first.plans[0].code.sha256 != second.plans[0].code.sha256
    # Host code did not change, and so its library's bytes did not.
    for host in HOSTS:
        one, other = (made.plans[0].libraries[host][0].sha256 for made in (first, second))
        assert one == other


def test_a_host_that_is_new_is_the_only_one_that_is_worked_for(tmp_path: Path) -> None:
    kernels = some(BATCH + 2)
    Workshop(tmp_path, ["x86_64"]).make(kernels)
    both = Workshop(tmp_path)
    both.make(kernels, fresh=False)
    assert both.work() == {"aarch64": (BATCH + 2, 1, 1), "x86_64": (0, 0, 0)}


def test_a_linker_that_is_new_links_everything_again(workshop: Workshop) -> None:
    kernels = some(3)
    workshop.make(kernels)
    workshop.linkers["aarch64"].fingerprint += ", newer"
    workshop.make(kernels, fresh=False)
    assert workshop.work() == {"aarch64": (3, 1, 1), "x86_64": (0, 0, 0)}


@pytest.mark.parametrize("damage", ["gone", "cut short"])
def test_what_the_store_has_lost_is_made_again(workshop: Workshop, damage: str) -> None:
    kernels = some(BATCH + 2)
    first = workshop.make(kernels)
    (plan,) = first.plans
    for sha256 in (plan.code.sha256, plan.libraries["x86_64"][0].sha256):
        path = workshop.store.blob_path(sha256)
        path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:-1])
    again = workshop.make(kernels, fresh=False)
    assert workshop.work() == {"aarch64": (0, 0, 0), "x86_64": (BATCH + 2, 1, 0)}
    assert again.files == first.files
    assert again.entries == first.entries


@pytest.mark.parametrize("body", [{"sha256": 7}, {"spans": {"k": [1]}}, {"spans": 7}, [], None, "text"])
def test_a_record_of_another_shape_counts_as_absent(workshop: Workshop, body: Any) -> None:
    kernels = some(3)
    first = workshop.make(kernels)
    for key in first.keys:
        record = workshop.store.get_record("library", key)
        workshop.store.put_record("library", key, {**record, **body} if isinstance(body, dict) else body)
    again = workshop.make(kernels, fresh=False)
    assert again.files == first.files
    assert again.entries == first.entries


def test_libraries_behind_the_store_are_not_made_again(tmp_path: Path) -> None:
    kernels = some(BATCH + 2)
    first = Workshop(tmp_path / "behind").make(kernels)
    here = Workshop(tmp_path / "here")
    here.store = Store(
        tmp_path / "here" / "store", upstream=[UpstreamDirectory(tmp_path / "behind" / "store")]
    )
    again = here.make(kernels, fresh=False)
    assert here.work() == dict.fromkeys(HOSTS, (0, 0, 0))
    assert again.files == first.files
    more = some(BATCH + 3)
    here.make(more, fresh=False)
    assert here.work() == dict.fromkeys(HOSTS, (BATCH + 3, 1, 0))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_an_error_of_the_compiler_comes_out_at_the_next_kernel(workshop: Workshop, target: str) -> None:
    """Not after hours, when the last kernel of the library is there, and whatever library the next is of."""
    kernels = some(BATCH + 2)  # of one library, which is never whole here: nothing of it is linked
    following = kernels[BATCH] if target == kernels[0].target else some(1, target=target)[0]
    workshop.linkers["aarch64"].refuses = kernels[3].symbol
    with workshop.making({*kernels, following}) as libraries:
        for kernel in kernels[: BATCH - 1]:
            libraries.add(kernel, workshop.put(kernel), True)
        # Whether this one already meets the error is a matter of time.
        with suppress(LinkError):
            libraries.add(kernels[BATCH - 1], workshop.put(kernels[BATCH - 1]), True)
        eventually(lambda: all(future.done() for own in libraries._compiled.values() for future in own))
        with pytest.raises(LinkError, match=f"^the compiler refuses {kernels[3].symbol}$"):
            libraries.add(following, workshop.put(following), True)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_of_the_compiler_comes_out_of_the_groups(tmp_path: Path, threads: int) -> None:
    workshop = Workshop(tmp_path, threads=threads)
    kernels = some(3)
    workshop.linkers["x86_64"].refuses = kernels[1].symbol
    with pytest.raises(LinkError, match=r"^the compiler refuses"):
        workshop.make(kernels)
    # What was made for the other host stays, and the next build goes on from there.
    workshop.linkers["x86_64"].refuses = ""
    workshop.make(kernels, fresh=False)
    assert workshop.work()["x86_64"] == (3, 1, 0)


@pytest.mark.parametrize("method", ["link", "link_launcher"])
def test_an_error_of_the_linker_comes_out_in_the_caller(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def refuse(*_: Any) -> None:
        raise LinkError("the linker refuses")

    monkeypatch.setattr(workshop.linkers["x86_64"], method, refuse)
    with pytest.raises(LinkError, match=r"^the linker refuses$"):
        workshop.make(some(3))


def test_an_object_that_is_gone_is_an_error_that_names_it(workshop: Workshop) -> None:
    kernels = some(2)
    objects = {kernel.symbol: workshop.put(kernel) for kernel in kernels}
    workshop.store.blob_path(objects[kernels[1].symbol]).unlink()

    def make(libraries: Libraries) -> None:
        for kernel in kernels:
            libraries.add(kernel, objects[kernel.symbol], True)
        Made(libraries, kernels, objects)

    with (
        workshop.making(kernels) as libraries,
        pytest.raises(
            StoreError, match=f"the object of {kernels[1].symbol} is gone or damaged since .* again"
        ),
    ):
        make(libraries)


def test_what_is_still_to_be_linked_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path, threads=4)
    goes_on = threading.Event()
    real = Linker.link

    def slow(linker: Linker, compiled: Mapping[str, Path], output: Path, cache: Path) -> None:
        assert goes_on.wait(120)
        real(linker, compiled, output, cache)

    monkeypatch.setattr(Linker, "link", slow)
    kernels = some(2)
    objects = {}
    with workshop.making(kernels) as libraries:
        for kernel in kernels:
            objects[kernel.symbol] = workshop.put(kernel)
            libraries.add(kernel, objects[kernel.symbol], True)
        assert workshop.told == []

        def go_on() -> None:
            eventually(lambda: bool(workshop.told))
            goes_on.set()

        waiting = threading.Thread(target=go_on)
        waiting.start()
        Made(libraries, kernels, objects)
        waiting.join()
    assert workshop.told[0] == Linking(len(HOSTS))
    assert [type(event) for event in workshop.told[1:]] == [Linked] * len(HOSTS)


def test_code_in_another_order_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are in order of name, and a name depends on which other groups there are."""
    kernels = [*some(3), *some(3, "nnt")]
    renamed = {kernel.group: f"{number}-{kernel.group}" for number, kernel in enumerate(kernels)}
    shared, alone = Workshop(tmp_path / "1"), Workshop(tmp_path / "2")
    first = shared.make(kernels)
    with monkeypatch.context() as patch:
        patch.setattr(
            link_groups, "group_names", lambda own: {kernel.group: renamed[kernel.group] for kernel in own}
        )
        second, fresh = shared.make(kernels, fresh=False), alone.make(kernels)
    assert second.plans[0].code.sha256 != first.plans[0].code.sha256
    assert [plan.code.sha256 for plan in second.plans] == [plan.code.sha256 for plan in fresh.plans]
    assert [entry.code for entry in second.entries] == [entry.code for entry in fresh.entries]


@pytest.mark.parametrize("part", ["zstandard", "level", "window_log"])
def test_what_compresses_is_in_the_keys(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    first = workshop.make(some(3))
    real = link_groups._compression()
    monkeypatch.setattr(link_groups, "_compression", lambda: {**real, part: "another"})
    second = workshop.make(some(3), fresh=False)
    assert not set(first.keys) & set(second.keys)
