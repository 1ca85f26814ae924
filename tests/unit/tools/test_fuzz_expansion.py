"""What is small and unpacks or lists to much is refused at once; the attacks themselves are in the tool."""

from __future__ import annotations

import pytest

from cutlass_aot.bundle.write import write_bundle
from tests.support.clock import SOON
from tests.support.synthetic import plan
from tools.fuzz import expansion


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("expansion")
    write_bundle(plan(folder / "linked"), folder / "small")
    return folder / "small"


@pytest.mark.parametrize("name", expansion.ATTACKS)
def test_verify_refuses_it_at_once(bundle, name, monkeypatch):
    monkeypatch.setattr(expansion, "SECONDS", SOON)
    ((_, taken),) = expansion.run(bundle, [name]).values()
    assert taken.wrong == "", taken


def test_the_tool_tells_what_takes_too_much(bundle, monkeypatch):
    taken = expansion.verify(bundle)
    assert taken.wrong.startswith("exit status 0")
    assert 0 < taken.memory < expansion.MEMORY
    monkeypatch.setattr(expansion, "GIVEN_UP", 0.01)
    assert "no end after" in expansion.verify(bundle).wrong
    assert expansion.Taken(1, expansion.SECONDS + 1, 0, "").wrong == "too much"
    assert expansion.Taken(1, 1.0, 1 << 30, "").wrong == "too much"
