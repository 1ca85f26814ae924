"""Whether a bundle can be used on a machine, as plain data: the answer of ``cutlass-aot doctor BUNDLE``."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cutlass_aot.bundle.wheel.catalog import read_wheel_catalog
from cutlass_aot.bundle.wheel.verify import look_at_wheel
from cutlass_aot.doctor.facts import facts_record
from cutlass_aot.doctor.warnings import warnings
from cutlass_aot.errors import BundleError, SignatureError, UntrustedBundle
from cutlass_aot.runtime.files import trust
from cutlass_aot.runtime.files.verified_read import manifest_bytes, read_catalog
from cutlass_aot.runtime.machine.compatibility import (
    Answer,
    GpuAnswer,
    Machine,
    Reason,
    Requirements,
    cuda_by_target,
    decide,
    text_of,
)
from cutlass_aot.runtime.search_path import installed_directories
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME, Catalog
from cutlass_aot.schema.drivers import first_driver
from cutlass_aot.schema.targets import Target


class NamedCatalog(NamedTuple):
    """The catalog of a bundle, and the directory or wheel that it was read from."""

    where: str
    catalog: Catalog


def find_bundles(name: str) -> list[NamedCatalog]:
    """The bundle in a directory or a wheel, or all that are installed under a name; at least one.

    A directory that is not a bundle does not hide an installed one of its name, which the folder of the
    package that declares its kernels may have.
    """
    path, problem = Path(name), ""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        # It may be the name of an installed bundle nevertheless.
        problem = (error.strerror if isinstance(error, OSError) else "") or str(error)
    else:
        if not stat.S_ISDIR(mode):
            return [NamedCatalog(name, read_wheel_catalog(path))]
        if os.sep in name or os.path.lexists(path / MANIFEST_NAME) or not _is_installed(name):
            return [NamedCatalog(name, read_catalog(path))]
    try:
        found = installed_directories(name, "a directory, a wheel")
    except BundleError:
        if not problem:
            raise
        raise BundleError(
            f"{name!r} cannot be read: {problem}; nor is a bundle of that name installed"
        ) from None
    return [NamedCatalog(str(folder), read_catalog(folder)) for folder in found]


def _is_installed(name: str) -> bool:
    try:
        return bool(installed_directories(name, "a directory"))
    except (BundleError, ValueError):
        return False


def diagnose(bundles: list[NamedCatalog], facts: Machine, *, here: bool = False) -> dict[str, Any]:
    """The answer for a machine, as plain data.

    ``here`` is whether the bundles are to be opened in this environment: keys that are required count then.

    Keys: ``accepted`` (whether any of the bundles is), ``facts`` (:mod:`cutlass_aot.doctor.facts`),
    ``warnings``, and ``bundles``, each with ``name``, ``version``, ``where``, ``targets``, ``hosts``,
    ``needs``, ``drivers`` (``cuda`` and first ``release``, by target), ``accepted``, ``reasons`` and
    ``gpus``. A reason has ``about``, ``problem`` and ``advice``; a GPU ``name``, ``target`` (None if no
    target serves it), ``kind`` of it, ``targets`` (all that would do) and ``reasons``.
    """
    answers = []
    for bundle in bundles:
        answer = decide(facts, Requirements.of(bundle.catalog))
        answers.append(_answer(bundle, answer, _distrust(bundle.where) if here else []))
    return {
        "accepted": any(answer["accepted"] for answer in answers),
        "facts": facts_record(facts),
        "bundles": answers,
        "warnings": warnings(facts),
    }


def _distrust(where: str) -> list[Reason]:
    """Why a directory or a wheel would not be opened for want of a signature; empty if it would."""
    advice = f"change {trust.ENVIRONMENT_VARIABLE}, or get a bundle that one of its keys has signed"
    path = Path(where)
    try:
        if path.is_dir():
            trust.check(path, manifest_bytes(path))
        elif keys := [key for demand in trust.required() for key in demand.keys]:
            unsigned = look_at_wheel(path, keys).unsigned
            return [Reason("signature", "no trusted key has signed its bundle", advice)] if unsigned else []
    except (SignatureError, UntrustedBundle) as error:
        return [Reason("signature", str(error), advice)]
    return []


def _answer(bundle: NamedCatalog, answer: Answer, distrust: list[Reason]) -> dict[str, Any]:
    catalog = bundle.catalog
    return {
        "name": catalog.name,
        "version": catalog.version,
        "where": bundle.where,
        "targets": list(catalog.targets),
        "hosts": list(catalog.hosts),
        "needs": catalog.requirements._asdict(),
        "drivers": {
            target: {"cuda": text_of(cuda), "release": first_driver(cuda)}
            for target, cuda in cuda_by_target(Requirements.of(catalog)).items()
        },
        "accepted": answer.accepted and not distrust,
        "reasons": [_reason(reason) for reason in (*distrust, *answer.reasons)],
        "gpus": [_gpu(gpu) for gpu in answer.gpus],
    }


def _reason(reason: Reason) -> Mapping[str, str]:
    return reason._asdict()


def _gpu(answer: GpuAnswer) -> dict[str, Any]:
    return {
        "name": answer.gpu.name,
        "target": answer.target,
        "kind": answer.target and Target.parse(answer.target).kind,
        "targets": list(answer.targets),
        "reasons": [_reason(reason) for reason in answer.reasons],
    }
