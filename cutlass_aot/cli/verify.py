"""``cutlass-aot verify``: every byte of a bundle, a wheel or a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cutlass_aot.cli.options import BundlePath, json_option, trusted_keys_option
from cutlass_aot.cli.output.render import print_json
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import ExitCode
from cutlass_aot.schema.bundles.signature import NO_TERMS, Terms
from cutlass_aot.schema.words import plural

if TYPE_CHECKING:
    from cutlass_aot.bundle.verify.directory import Findings
    from cutlass_aot.runtime.files.signatures import PublicKey


@click.command("verify")
@click.argument("path", type=BundlePath("a directory, a wheel"))
@trusted_keys_option
@json_option
def command(path: Path, keys: tuple[Path, ...], as_json: bool) -> int:
    """Check every byte of PATH, a bundle, a wheel or a store, against its digest, and list what is wrong.

    PATH may be the name of an installed bundle.

    The exit status is 1 if anything is damaged, and 3 if nothing is, but none of the keys has signed it.
    """
    from cutlass_aot.bundle.verify.path import CHECKERS, Checker, is_file, look_at

    store = Checker(
        kind="store",
        looks_like="a directory with a FORMAT file",
        recognises=lambda candidate: is_file(candidate / "FORMAT"),
        look_at=_store,
    )
    trusted: tuple[PublicKey, ...] = ()
    if keys:
        from cutlass_aot.runtime.files.signatures import read_public_keys

        trusted = read_public_keys(keys)
    findings = look_at(path, trusted, (*CHECKERS, store))
    problems = findings.problems
    if as_json:
        print_json(
            {
                "path": str(path),
                "problems": [asdict(problem) for problem in problems],
                "more_problems": findings.more,
                "signers": findings.signers,
                "terms": {signer: _terms(findings, signer)._asdict() for signer in findings.signers},
                "warnings": findings.warnings,
            }
        )
    else:
        for problem in problems:
            # ``found`` is a noun phrase, or a sentence that begins with the path, which is printed already.
            found = problem.found.removeprefix(f"{problem.path} is ").removeprefix(f"{problem.path}: ")
            say(f"{problem.path}: {found}; expected {problem.expected}", err=True)
        if findings.more:
            say(f"{path}: and {plural(findings.more, 'more problem')}", err=True)
        for warning in findings.warnings:
            say(f"{path}: {warning}", err=True)
        state = plural(len(problems) + findings.more, "problem") if problems else "good"
        say(f"{path}: {', '.join([state, *_signers(findings, trusted)])}")
    if findings.unsigned and not findings.damaged:
        return ExitCode.UNTRUSTED
    return ExitCode.FAILED if problems else ExitCode.GOOD


def _signers(findings: Findings, trusted: Sequence[PublicKey]) -> list[str]:
    """For each signer, in words: the file of the key if it was given, else its id; and the terms."""
    known = {key.id: str(key) for key in trusted}
    return [
        f"signed by {known.get(signer, signer)}" + (f" ({terms})" if str(terms) else "")
        for signer, terms in ((signer, _terms(findings, signer)) for signer in findings.signers)
    ]


def _terms(findings: Findings, signer: str) -> Terms:
    signatures = findings.bundle.signatures if findings.bundle else ()
    return next((signature.terms for signature in signatures if signature.key == signer), NO_TERMS)


def _store(path: Path, keys: Sequence[PublicKey]) -> Findings:
    from cutlass_aot.bundle.verify.directory import Findings, Problem
    from cutlass_aot.store.maintenance.check import check
    from cutlass_aot.store.store import Store

    if keys:
        raise click.UsageError(f"{path} is a store, and has no signatures: --key is for bundles and wheels")
    expected = "what its name says; a build that needs it makes it again"
    findings = Findings()
    damages = check(Store(path, create=False))
    findings.add(Problem(damage.path, damage.problem, expected) for damage in damages)
    return findings
