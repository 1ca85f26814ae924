"""Registries that do not mean well: two of the attacks, and that the tool tells pulls that end otherwise."""

from __future__ import annotations

import pytest

pytest.importorskip("oras")

from tools.torture import registry
from tools.torture.attacks import attack_command


@pytest.mark.parametrize("name", ["100 Continue for ever", "a login at another host"])
def test_a_pull_ends(tmp_path, name):
    seconds, said, wrong = registry.attacked(registry.ATTACKS[name], tmp_path)
    assert wrong == "", (seconds, said)


def test_a_pull_that_ends_otherwise_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "TIMEOUT", 0.5)
    _, said, wrong = registry.attacked(registry.ATTACKS["a redirect to a file"], tmp_path)
    # The command takes no such timeout.
    assert wrong == "exit status 2", said


def test_a_pull_that_is_held_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_LONGEST", 0.05)
    assert registry.attacked(registry.ATTACKS["silence"], tmp_path)[2] == "held"


@pytest.mark.parametrize(("wrong", "status"), [("", 0), ("held", 1)])
def test_an_attack_that_finds_a_fault_is_an_exit_status(wrong, status, capsys):
    command = attack_command("", ["silence"], lambda name, folder: (1.5, wrong, ["so"]), "ended", ["said"])
    with pytest.raises(SystemExit) as caught:
        command(["--attack", "silence"])
    assert caught.value.code == status
    assert f"| silence | 1.5 | {wrong or 'ended'} | so |" in capsys.readouterr().out
