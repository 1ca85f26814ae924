"""What other users and killed builders leave: the attacks but the one that takes a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.torture import neighbours


@pytest.mark.compile
@pytest.mark.parametrize("name", sorted({*neighbours.ATTACKS} - {"held locks"}))
def test_it_is_withstood(tmp_path: Path, name: str) -> None:
    assert neighbours.ATTACKS[name](tmp_path) == ""


def test_what_ends_otherwise_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_command", lambda *words: ["printf", neighbours._TITLE])
    assert neighbours.escape_sequences(tmp_path) == "ls printed it as it is"
