"""Older bundles, expired signatures and revoked keys do not count where that is demanded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

import cutlass_aot
from cutlass_aot.bundle.verify.directory import look_at_bundle
from cutlass_aot.bundle.verify.path import look_at
from cutlass_aot.bundle.wheel.write import build_wheels
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.cli import main
from cutlass_aot.errors import SignatureError, UntrustedBundle
from cutlass_aot.runtime.files import signatures, trust
from cutlass_aot.runtime.files.signatures import read_public_keys
from tests.support.bundles import designs
from tests.support.bundles import write_bundle as write_host_bundle
from tests.support.signing import Key, make_key
from tests.support.synthetic import plan


@pytest.fixture(autouse=True)
def _process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(trust.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(trust, "_process", trust._Process())
    monkeypatch.setattr(signatures, "today", lambda: "2026-11-24")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def key(keys: Path) -> Key:
    return make_key(keys, 1)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_host_bundle(tmp_path / "small", designs())


def demand(keys: Path, **values: object) -> None:
    body = {"schema": 1, "kind": "cutlass-aot trust policy", **values}
    (keys / "policy.json").write_text(json.dumps(body))


def opens(bundle: Path, keys: Path) -> bool:
    """Whether every way to say whose bundles are loaded agrees that this one is, or is not."""
    try:
        cutlass_aot.open(bundle, keys=keys, check=False)
    except UntrustedBundle:
        return False
    return True


@pytest.mark.parametrize(("minimum", "good"), [(0, True), (6, True), (7, True), (8, False)])
def test_a_lower_sequence_than_is_demanded_does_not_count(bundle, key, keys, minimum, good):
    key.sign(bundle, sequence=7)
    demand(keys, minimum_sequence=minimum)
    assert opens(bundle, keys) is good


def test_a_signature_without_a_sequence_is_the_oldest(bundle, key, keys):
    key.sign(bundle)
    assert opens(bundle, keys)
    demand(keys, minimum_sequence=1)
    with pytest.raises(UntrustedBundle, match=r"does not count: it has sequence 0, .* demands 1 or more"):
        cutlass_aot.open(bundle, keys=keys, check=False)


@pytest.mark.parametrize(("expires", "good"), [("2026-11-23", False), ("2026-11-24", True), ("", True)])
def test_a_signature_is_good_until_the_end_of_its_last_day(bundle, key, keys, expires, good):
    key.sign(bundle, expires=expires)
    assert opens(bundle, keys) is good
    # Also where the key's file alone is named: no directory has to demand this.
    assert opens(bundle, key.public) is good


def test_an_expiry_can_be_demanded(bundle, key, keys):
    key.sign(bundle)
    demand(keys, require_expiry=True)
    with pytest.raises(UntrustedBundle, match=r"it does not expire, which policy\.json beside the key"):
        cutlass_aot.open(bundle, keys=keys, check=False)
    key.sign(bundle, expires="2027-01-01")
    assert opens(bundle, keys)


def test_terms_that_are_altered_are_not_signed(bundle, key, keys):
    """Somebody without the key raises the sequence, or the last day."""
    path = key.sign(bundle, sequence=3, expires="2026-11-20")
    body = json.loads(path.read_bytes())
    for change in ({"sequence": 9}, {"expires": "2030-01-01"}, {"expires": ""}):
        path.write_bytes(json.dumps({**body, **change}, indent=1, sort_keys=True).encode() + b"\n")
        assert not opens(bundle, keys)


def test_a_revoked_key_does_not_count(bundle, key, keys, tmp_path):
    other = make_key(tmp_path / "others", 2)
    key.sign(bundle, sequence=9)
    assert opens(bundle, keys)
    shutil.copy(key.public, keys / "lost.revoked")
    with pytest.raises(UntrustedBundle, match=r"does not count: .*lost\.revoked revokes the key"):
        cutlass_aot.open(bundle, keys=keys, check=False)
    # Neither where another place names it, nor with what else is demanded.
    with pytest.raises(UntrustedBundle):
        cutlass_aot.open(bundle, keys=[key.public, keys], check=False)
    # Who signs with another key, too, is trusted by that one.
    other.sign(bundle)
    assert cutlass_aot.open(bundle, keys=[keys, other.public], check=False).signers[0].id == other.id


def test_a_directory_whose_keys_are_all_revoked_trusts_nobody(bundle, key, keys):
    key.sign(bundle)
    key.public.rename(keys / "key.revoked")
    with pytest.raises(SignatureError, match="has no public keys"):
        cutlass_aot.open(bundle, keys=keys, check=False)


def test_one_key_in_two_directories_has_the_demands_of_both(bundle, key, keys, tmp_path):
    key.sign(bundle, sequence=5)
    shutil.copytree(keys, tmp_path / "more")
    demand(keys, minimum_sequence=5)
    demand(tmp_path / "more", require_expiry=True)
    assert opens(bundle, keys)
    assert not opens(bundle, [keys, tmp_path / "more"])
    assert not opens(bundle, [tmp_path / "more", keys])


def test_the_variable_and_trust_take_policies_too(bundle, key, keys, monkeypatch):
    key.sign(bundle, sequence=5)
    demand(keys, minimum_sequence=6)
    monkeypatch.setenv(trust.ENVIRONMENT_VARIABLE, str(keys))
    with pytest.raises(UntrustedBundle):
        cutlass_aot.open(bundle, check=False)
    monkeypatch.setattr(trust, "_process", trust._Process())
    monkeypatch.delenv(trust.ENVIRONMENT_VARIABLE)
    cutlass_aot.trust(keys)
    with pytest.raises(UntrustedBundle):
        cutlass_aot.open(bundle, check=False)


@pytest.mark.parametrize("change", ["policy", "revoked"])
def test_trust_is_not_satisfied_by_a_bundle_that_was_opened_under_less(bundle, key, keys, change):
    key.sign(bundle, sequence=5)
    cutlass_aot.open(bundle, keys=key.public, check=False)
    if change == "policy":
        demand(keys, minimum_sequence=6)
    else:
        shutil.copy(key.public, keys / "lost.revoked")
    with pytest.raises(UntrustedBundle, match="was opened already, and not checked against"):
        cutlass_aot.trust(keys)


@pytest.mark.parametrize("change", ["policy", "revoked"])
def test_a_second_call_of_trust_takes_no_demand_away(bundle, key, keys, change):
    key.sign(bundle, sequence=5)
    make_key(keys, 2)
    if change == "policy":
        demand(keys, minimum_sequence=6)
    else:
        shutil.copy(key.public, keys / "lost.revoked")
    cutlass_aot.trust(keys)
    cutlass_aot.trust(key.public)
    with pytest.raises(UntrustedBundle):
        cutlass_aot.open(bundle, check=False)


def test_a_policy_that_cannot_be_read_is_an_error(bundle, key, keys):
    key.sign(bundle)
    for text in ("", "{}", "[" * 9999, '{"schema": 1, "kind": "cutlass-aot trust policy", "more": 1}'):
        (keys / "policy.json").write_text(text)
        with pytest.raises(SignatureError, match=r"policy\.json"):
            cutlass_aot.open(bundle, keys=keys, check=False)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    write_bundle(plan(tmp_path / "linked"), tmp_path / "sound")
    return tmp_path / "sound"


def test_verify_demands_the_same(sound, key, keys, tmp_path):
    key.sign(sound, sequence=7, expires="2026-11-20")
    findings = look_at_bundle(sound, read_public_keys([keys]))
    assert (findings.unsigned, findings.damaged) == (True, False)
    assert "it was good until 2026-11-20" in findings.problems[0].found
    # Without a key, it is a right signature that is told to be old.
    findings = look_at_bundle(sound)
    assert findings.problems == []
    assert findings.warnings == [f"the signature by {key.id} has expired: it was good until 2026-11-20"]
    key.sign(sound, sequence=7)
    (wheel,) = build_wheels(sound, tmp_path / "wheels")
    assert look_at(wheel, read_public_keys([keys])).problems == []
    demand(keys, minimum_sequence=8)
    for path in (sound, wheel):
        findings = look_at(path, read_public_keys([keys]))
        assert (findings.unsigned, findings.damaged) == (True, False)


def test_the_commands_sign_terms_and_tell_them(sound, key, keys, tmp_path, capsys):
    def run(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return int(ended.value.code or 0), capsys.readouterr().out

    status, out = run("sign", sound, "--key", key.path, "--sequence", 7, "--expires", "2027-06-30")
    assert (status, out.endswith("signed, sequence 7, good until 2027-06-30\n")) == (0, True)
    status, out = run("verify", sound, "--key", key.public)
    assert status == 0
    assert f"signed by {key.id} ({key.public}) (sequence 7, good until 2027-06-30)" in out
    told = json.loads(run("verify", sound, "--json")[1])
    assert told["terms"] == {key.id: {"sequence": 7, "expires": "2027-06-30"}}
    assert run("sign", sound, "--key", key.path, "--expires", "2027-02-30")[0] == 2
    for past in ("2026-11-23", "0999-01-01"):
        assert run("sign", sound, "--key", key.path, "--expires", past)[0] == 2
    assert run("sign", sound, "--key", key.path, "--sequence", -1)[0] == 2
    assert run("wheel", sound, "-o", tmp_path / "w", "--sequence", 1)[0] == 2
    assert run("wheel", sound, "-o", tmp_path / "w", "--key", key.path, "--sequence", 8)[0] == 0
    (wheel,) = (tmp_path / "w").iterdir()
    assert "sequence 8" in run("verify", wheel)[1]
