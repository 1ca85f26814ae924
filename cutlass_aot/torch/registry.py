"""Open bundles by handle: text, since operators and compiled graphs cannot carry other objects.

The registry keeps bundles alive. A compiled graph, a graph of gradients or a layer holds only the handle, so
that a weak registry would let the bundle go while they need it; and it would free little, since mapped
libraries stay mapped for the life of the process.

A handle is made from the bundle's contents, and from whether it was opened with its rankings. It is the same
in every process and for every copy of the bundle, so that a saved model, an exported graph or a compiler's
cache finds its kernels again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from cutlass_aot.errors import BundleError, OperandError
from cutlass_aot.runtime.bundle import opened_bundles
from cutlass_aot.runtime.machine.process_lock import ProcessLock
from cutlass_aot.schema.words import did_you_mean

if TYPE_CHECKING:
    from cutlass_aot.runtime.bundle import Bundle

_bundles: dict[str, Bundle] = {}
_handles: WeakKeyDictionary[Bundle, str] = WeakKeyDictionary()
_lock = ProcessLock()


def register(bundle: Bundle, handle: str | None = None) -> str:
    """Register an open bundle under a handle, for the life of the process.

    The functions of this package register the bundles that they are given. Call it to load a saved model or
    an exported graph, which has only the handle.

    Args:
        bundle: an open bundle.
        handle: any text; None for one made of the bundle's name, version and contents, with ``-unranked`` if
            it was opened with ``rankings=False``.

    Returns:
        The handle. Bundles with the same contents, opened alike, share one, and the first of them is used.

    Raises:
        OperandError: if ``bundle`` is not an open bundle, or ``handle`` already stands for another bundle.
    """
    if not hasattr(bundle, "digest"):
        raise OperandError(
            f"expected an open bundle (cutlass_aot.open), got {type(bundle).__module__}."
            f"{type(bundle).__qualname__}"
        )
    known_handle = _handles.get(bundle)
    if handle is None and known_handle is not None:
        return known_handle
    if handle is None:
        handle = _default_handle(bundle)
        with _lock:
            _bundles.setdefault(handle, bundle)
            _handles[bundle] = handle
        return handle
    with _lock:
        known = _bundles.setdefault(handle, bundle)
        if known is not bundle and _default_handle(known) != _default_handle(bundle):
            raise OperandError(
                f"handle {handle!r} already stands for the bundle {_default_handle(known)}, not for "
                f"{_default_handle(bundle)}: choose another one"
            )
        _handles.setdefault(bundle, handle)
    return handle


def _default_handle(bundle: Bundle) -> str:
    contents = bundle.digest[:16]
    # Without rankings it chooses other kernels.
    return f"{bundle.name}-{bundle.version}-{contents}{'' if bundle.uses_rankings else '-unranked'}"


def bundle_of(bundle: Bundle | str) -> Bundle:
    """The open bundle given, or registered under the handle given.

    Raises:
        BundleError: for a handle that nothing is registered under.
    """
    if not isinstance(bundle, str):
        return bundle
    try:
        return _bundles[bundle]
    except KeyError:
        raise BundleError(
            f"no bundle is registered as {bundle!r} in this process: open it, and pass it to "
            f"cutlass_aot.torch.register{did_you_mean(bundle, _bundles)}"
        ) from None


def handle_of(bundle: Bundle | str) -> str:
    """The handle of a bundle, which is registered if it was not; a handle is returned unchanged."""
    if isinstance(bundle, str):
        return bundle
    if torch.compiler.is_compiling():
        return _handle_by_identity(id(bundle))
    return register(bundle)


def _handle_by_identity(identity: int) -> str:
    """The handle of the bundle with this ``id``.

    A tracing compiler can only run it with constant arguments. A bundle is not one, but its ``id`` is: the
    compiler guards on it, so that another bundle in the same variable causes another compilation.
    """
    # Not by gc.get_objects, which lists nothing of before a gc.freeze.
    for bundle in (*_handles, *opened_bundles()):
        if id(bundle) == identity:
            return register(bundle)
    raise BundleError("expected a bundle that is open (cutlass_aot.open), or its handle, in traced code")


# As torch.compiler.assume_constant_result does, which would import the compiler now.
_handle_by_identity._dynamo_marked_constant = True  # type: ignore[attr-defined]
