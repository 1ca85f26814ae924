"""Shares of a build: every key in exactly one, as many in one as in another, whoever works it out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.builder.shard import Share

KEYS = st.lists(st.text("0123456789abcdef", min_size=4, max_size=4), unique=True, max_size=60)


@given(KEYS, st.integers(1, 20))
def test_every_key_is_in_exactly_one_share(keys, count):
    shares = [Share(index, count).of(keys) for index in range(1, count + 1)]
    assert sorted(key for share in shares for key in share) == sorted(keys)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@given(KEYS, st.randoms(), st.integers(1, 5))
def test_the_order_of_keys_does_not_matter(keys, random, count):
    shuffled = list(keys)
    random.shuffle(shuffled)
    assert Share(1, count).of(shuffled) == Share(1, count).of(keys)


@given(st.integers(1, 999_999), st.integers(1, 999_999))
def test_a_share_is_read_as_it_is_written(index, count):
    if index <= count:
        assert Share.parse(f"{index}/{count}") == Share(index, count)
    else:
        with pytest.raises(ValueError, match="such as 3/16"):
            Share.parse(f"{index}/{count}")


@pytest.mark.parametrize(
    "text", ["", "1", "1/", "/2", "1/2/3", "1.5/2", " 1/2", "\uff11/\uff12", "0/0", "9999999/9999999"]
)
def test_what_is_no_share_is_refused(text):
    with pytest.raises(ValueError, match="such as 3/16"):
        Share.parse(text)
