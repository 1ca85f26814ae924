"""NVIDIA's drivers and GPUs: the CUDA version of each driver, and what each model has.

The tables say where they are from. A model that they lack is not known.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from cutlass_aot.schema.tuning.costs import Machine
from cutlass_aot.schema.versions import release as parts_of
from cutlass_aot.schema.words import closest, did_you_mean

_T = TypeVar("_T")

FIRST_DRIVERS: Mapping[tuple[int, int], str] = MappingProxyType(
    {
        (11, 0): "450.51.05",
        (11, 1): "455.23",
        (11, 2): "460.27.03",
        (11, 3): "465.19.01",
        (11, 4): "470.42.01",
        (11, 5): "495.29.05",
        (11, 6): "510.39.01",
        (11, 7): "515.43.04",
        (11, 8): "520.61.05",
        (12, 0): "525.60.13",
        (12, 1): "530.30.02",
        (12, 2): "535.54.03",
        (12, 3): "545.23.06",
        (12, 4): "550.54.14",
        (12, 5): "555.42.02",
        (12, 6): "560.28.03",
        (12, 8): "570.26",
        (12, 9): "575.51.03",
        (13, 0): "580.65.06",
        (13, 1): "590.44.01",
        (13, 2): "595.45.04",
        (13, 3): "610.43.02",
        (13, 4): "615",
    }
)
"""CUDA version to the first Linux driver that supports it, oldest first.

Source: CUDA Toolkit release notes (docs.nvidia.com/cuda/cuda-toolkit-release-notes), table "CUDA Toolkit and
Corresponding Driver Versions", the row of each version's first general release; up to 13.1 the notes of 13.1,
of 13.2 and 13.3 their own. Of 13.4 the branch alone: the release notes of CUTLASS 4.8.0dev say that kernels
for Rubin need "the R615 driver which will be released with CUDA Toolkit 13.4 GA". There was no toolkit 12.7,
and drivers for CUDA 10 run nothing that is built here.
"""

COMPUTE_CAPABILITIES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "A10": (8, 6),
        "A100": (8, 0),
        "A10G": (8, 6),
        "A16": (8, 6),
        "A2": (8, 6),
        "A30": (8, 0),
        "A40": (8, 6),
        "A800": (8, 0),
        "B200": (10, 0),
        "B300": (10, 3),
        "GB10": (12, 1),
        "GB200": (10, 0),
        "GB300": (10, 3),
        "GH200": (9, 0),
        "H100": (9, 0),
        "H20": (9, 0),
        "H200": (9, 0),
        "H800": (9, 0),
        "L20": (8, 9),
        "L4": (8, 9),
        "L40": (8, 9),
        "L40S": (8, 9),
        "Orin": (8, 7),
        "RTX 3060": (8, 6),
        "RTX 3070": (8, 6),
        "RTX 3080": (8, 6),
        "RTX 3090": (8, 6),
        "RTX 4000 Ada": (8, 9),
        "RTX 4060": (8, 9),
        "RTX 4070": (8, 9),
        "RTX 4080": (8, 9),
        "RTX 4090": (8, 9),
        "RTX 5000 Ada": (8, 9),
        "RTX 5060": (12, 0),
        "RTX 5070": (12, 0),
        "RTX 5080": (12, 0),
        "RTX 5090": (12, 0),
        "RTX 6000 Ada": (8, 9),
        "RTX A4000": (8, 6),
        "RTX A5000": (8, 6),
        "RTX A6000": (8, 6),
        "RTX PRO 4000 Blackwell": (12, 0),
        "RTX PRO 4500 Blackwell": (12, 0),
        "RTX PRO 5000 Blackwell": (12, 0),
        "RTX PRO 6000 Blackwell": (12, 0),
        "Rubin": (10, 7),
        "T4": (7, 5),
        "Thor": (11, 0),
        "V100": (7, 0),
    }
)
"""Words in the name that a driver gives a GPU, and the compute capability of that model.

Source: NVIDIA's list "CUDA GPU Compute Capability" (developer.nvidia.com/cuda-gpus); Thor as CUDA 13.0 names
it, which was 10.1 before; Rubin by the release notes of CUDA 13.4.
"""

_MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "A10": Machine(72, 1695, 600),
        "A100": Machine(108, 1410, 2039),
        "A100 PCIE 40GB": Machine(108, 1410, 1555),
        "A100 SXM4 40GB": Machine(108, 1410, 1555),
        "A30": Machine(56, 1440, 933),
        "A40": Machine(84, 1740, 696),
        "B200": Machine(148, 1965, 8000),
        "GH200": Machine(132, 1980, 4000),
        "GH200 144G HBM3e": Machine(132, 1980, 4900),
        "H100": Machine(132, 1980, 3352),
        "H100 NVL": Machine(132, 1785, 3938),
        "H100 PCIe": Machine(114, 1755, 2039),
        "H20": Machine(78, 1980, 4000),
        "H200": Machine(132, 1980, 4814),
        "H200 NVL": Machine(132, 1785, 4814),
        "L4": Machine(58, 2040, 300),
        "L40": Machine(142, 2490, 864),
        "L40S": Machine(142, 2520, 864),
        "RTX 3090": Machine(82, 1695, 936),
        "RTX 3090 Ti": Machine(84, 1860, 1008),
        "RTX 4090": Machine(128, 2520, 1008),
        "RTX 4090 D": Machine(114, 2520, 1008),
        "RTX 5080": Machine(84, 2617, 960),
        "RTX 5090": Machine(170, 2407, 1792),
        "RTX A6000": Machine(84, 1800, 768),
        "Thor": Machine(20, 1575, 273),
    }
)
"""What times scale with, by words in the names of GPUs: what kernels are chosen by where the GPU is not here.

H100 and H200 are as their drivers say. The others are figures that NVIDIA publishes, entered without a GPU at
hand and not checked on one: good enough for estimates. Where the name does not say how much memory there is,
an A100 has 80 GB, and a GH200 HBM3.
"""

_PARTS_OF_GPUS = frozenset({"laptop", "max", "mig"})
"""Words of names whose GPU has less than the model: of laptops (also Max-Q), or a slice of one (MIG)."""

_WORD = re.compile(r"[a-z0-9]+")
_VENDOR = "nvidia"


def cuda_of_driver(release: str) -> tuple[int, int] | None:
    """The newest CUDA version of :data:`FIRST_DRIVERS` that a Linux driver (``580.159.04``) supports.

    A release between two rows has that of the older one; None if it is older than all. Text that does not
    begin with a number is a ValueError.
    """
    found = parts_of(release)
    supported = [cuda for cuda, first in FIRST_DRIVERS.items() if parts_of(first) <= found]
    return max(supported, default=None)


def first_driver(cuda: tuple[int, int]) -> str | None:
    """The first driver that supports a CUDA version; None if that is newer than the table."""
    return next((first for version, first in FIRST_DRIVERS.items() if version >= cuda), None)


def compute_capability_of(model: str) -> tuple[int, int] | None:
    """Compute capability of a GPU model by its name, such as ``NVIDIA H200``; None if it is not known.

    Whole words are compared, ignoring case: ``NVIDIA A100-SXM4-80GB`` is an A100, not an A10.
    """
    return _of_model(COMPUTE_CAPABILITIES, model)


def machine_of(model: str) -> Machine | None:
    """What times scale with on a GPU model by its name, as in :func:`compute_capability_of`."""
    if _PARTS_OF_GPUS.intersection(_WORD.findall(model.lower())):
        return None
    return _of_model(_MACHINES, model)


def _of_model(table: Mapping[str, _T], model: str) -> _T | None:
    """The entry whose key has most of the words of a model's name."""
    matching = [(len(key.split()), found) for key, found in table.items() if _has_words(model, key)]
    return max(matching, default=(0, None), key=lambda item: item[0])[1]


def refusal_of_model(name: str, measured: Sequence[str]) -> str | None:
    """Why a name is refused that may be a misspelt GPU model; None if something is known of it.

    Args:
        name: of a model, or a part of it.
        measured: models that something was measured on.
    """
    if models_named(name, measured):
        return None
    vendor, *words = _WORD.findall(name.lower()) or [""]
    model = name[len(vendor) :].lstrip(" -_")
    misspelt = vendor != _VENDOR and closest(vendor, (_VENDOR,)) is not None and bool(words)
    if not misspelt and compute_capability_of(name) is not None:
        return None
    here = f"{', '.join(measured)}, on which the bundle was measured, or " if measured else ""
    # Without the vendor, since that is most of a short name.
    meant = did_you_mean(model if vendor == _VENDOR else name, (*measured, *COMPUTE_CAPABILITIES))
    if misspelt and compute_capability_of(model) is not None:
        meant = f"; did you mean {f'NVIDIA {model}'!r}?"
    return (
        f"nothing is known of a GPU model {name!r}: expected {here}one of {', '.join(COMPUTE_CAPABILITIES)}"
        f"{meant}"
    )


def models_named(name: str, models: Iterable[str]) -> tuple[str, ...]:
    """Those of the models, named as their drivers do, that a name such as ``h200`` stands for.

    Case does not matter, and the vendor may be left out, and then also what follows the model: ``H100`` is an
    ``NVIDIA H100 PCIe``. ``NVIDIA H100`` is not, since a driver gives this name to another model.
    """
    known = tuple(models)
    same = tuple(model for model in known if _WORD.findall(model.lower()) == _WORD.findall(name.lower()))
    if same or _VENDOR in _WORD.findall(name.lower()) or compute_capability_of(name) is None:
        return same
    whole = models_named(f"{_VENDOR} {name}", known)
    return whole or tuple(model for model in known if _has_words(model, name))


def _has_words(model: str, part: str) -> bool:
    """Whether the words of a part stand in a model's name, one after the other."""
    words, parts = _WORD.findall(model.lower()), _WORD.findall(part.lower())
    return any(words[at : at + len(parts)] == parts for at in range(len(words) - len(parts) + 1))
