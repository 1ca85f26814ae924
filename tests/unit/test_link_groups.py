"""Which groups share a library, and what a library that cannot be made is."""

from __future__ import annotations

import errno
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.builder.groups import KERNELS_A_PACK, pack
from cutlass_aot.builder.link_groups import Libraries
from cutlass_aot.errors import StoreError
from cutlass_aot.store.store import Store
from tests.unit.kernels import gemm

GROUPS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.tuples(st.sampled_from(["sm_80", "sm_90a"]), st.integers(1, 2 * KERNELS_A_PACK)),
    max_size=20,
)


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
