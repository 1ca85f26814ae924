"""Explain why no bundle answers a request: the nearest request in them, what differs, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from cutlass_aot.programs.describe.profiles import sm_count_at_hand
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.schema.requests.request import ABSENT, Difference, Request
from cutlass_aot.schema.words import few

_SHOWN = 4
"""The most differences in a message."""
_ADVICE = {
    "target": "Add {target} to the targets of the manifest, and build again",
    "device": "The bundle was built for another GPU of this target: name the profile of this one as `device` "
    "in the manifest, and build again",
    "code": "The installed code is not what the bundle was built from: install that version, or build again",
    "state": "Give these the values that they had when the program was recorded, or record it again with "
    "these (variables: `environment` in its table), and build again",
}
"""What to do, by the field of the request that differs; the most general first."""
_ONE_SIDED = (
    "A package whose code is in one of them alone mostly puts functions of its own into the DSL when it is "
    "imported, and every kernel follows from them: import it in both programs before the first kernel is "
    "compiled, or in neither, and build again"
)
_NO_GPU = (
    "There is no GPU here, so that the DSL has taken {target}: run it on the GPU, or set CUTE_DSL_ARCH to a "
    "target of the bundle, to try it without one"
)
_CALL = "Add this call to the program that is recorded, and build again"


def explain_miss(request: Request, bundles: Sequence[Bundle]) -> str:
    """Why none of the bundles answers a request, in a few sentences."""
    names = ", ".join(f"{bundle.name} {bundle.version}" for bundle in bundles) or "no bundle"
    text = f"no kernel for {request.callable} ({request.digest[:12]}, {request.target}) in {names}"
    found = [near for bundle in bundles if (near := bundle.requests.nearest(request)) is not None]
    if not found:
        return f"{text}, which has no requests of programs: name the program in a manifest under [[programs]]"
    other, differences = min(found, key=lambda near: len(near[1]))
    order = list(_ADVICE)
    differences.sort(key=lambda item: order.index(_field(item)) if _field(item) in order else len(order))
    shown = few(map(_in_words, differences), _SHOWN, separator="; ")
    # The nearest may be for another target because this callable was not recorded for this one.
    is_built = any(request.target in bundle.requests.targets for bundle in bundles)
    is_call = is_built and other.target != request.target
    field = _field(differences[0]) if differences and not is_call else ""
    advice = _ADVICE.get(field, _CALL)
    if field == "target" and sm_count_at_hand() is None:
        advice = _NO_GPU
    if field == "code" and all(ABSENT in item[1:] for item in differences if _field(item) == "code"):
        # Another call reaches other code; the same call does if the DSL itself has other code.
        advice = _ONE_SIDED if {_field(item) for item in differences} <= {"code", "state"} else _CALL
    advice = advice.format(target=request.target)
    return f"{text}. Nearest is {other.callable} ({other.digest[:12]}, {other.target}): {shown}. {advice}"


def _in_words(difference: Difference) -> str:
    path, ours, theirs = difference
    if path == "state.bindings":
        return (
            "what its modules decided when they were imported is something else than in the bundle: "
            "definitions, default values, decorators; they may depend on the environment, or on the version "
            "of Python"
        )
    return f"{path} is {ours}, and {theirs} in the bundle"


def _field(difference: Difference) -> str:
    return difference.path.partition(".")[0].partition("[")[0]
