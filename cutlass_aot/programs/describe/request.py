"""The request that a call of ``cute.compile`` makes; nothing is traced for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.byte_code import returns_a_value
from cutlass_aot.programs.describe.call import Call, call_of, described_arguments, passed_values
from cutlass_aot.programs.describe.code_slice import CodeSlice, Outdated
from cutlass_aot.programs.describe.definitions import original_code, qualified_name
from cutlass_aot.programs.describe.distributions import DSL, dsl_fingerprint, joined
from cutlass_aot.programs.describe.follow_code import slice_of
from cutlass_aot.programs.describe.options import options_of
from cutlass_aot.programs.describe.patches import patches
from cutlass_aot.programs.describe.values.describer import Describer
from cutlass_aot.programs.without_tvm_ffi import OPTION as WITH_TVM_FFI
from cutlass_aot.programs.without_tvm_ffi import check_passed
from cutlass_aot.schema.requests.request import MAX_REQUEST_BYTES, Request, Value


class Surroundings(NamedTuple):
    """What a request follows from, beside its arguments.

    Attributes:
        device: target to :attr:`~cutlass_aot.schema.requests.request.Request.device`.
        given: target and device to the environment variables that say no more than these two.
        dsl: fingerprint of the DSL, or, where it is not installed, of the DSL that built the bundles.
    """

    device: Callable[[str], Mapping[str, int]]
    given: Callable[[str, Mapping[str, int]], Mapping[str, str]]
    dsl: Callable[[], str] = dsl_fingerprint


def request_of(
    compiler: Any,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    surroundings: Surroundings,
    *,
    direct: bool = False,
) -> Request:
    """The request of ``compiler(*arguments, **keywords)``, with ``cute.compile`` or ``cute.compile[...]``.

    ``direct`` says that the program calls the function itself, and so takes what it returns.
    """
    try:
        call = call_of(arguments, keywords)
        if direct and returns_a_value(original_code(call.function)):
            raise RequestError(
                f"{call.name}: it returns a value, which only tracing it gives: compile it with cute.compile"
            )
        return _request_of(compiler, call, surroundings)
    except RequestError:
        raise
    except Exception as error:
        # Properties and comparisons of the program's own classes may raise anything.
        subject = arguments[0] if inspect.isroutine(arguments[0]) else type(arguments[0])
        raise RequestError(
            f"{qualified_name(subject)} could not be described: {type(error).__name__}: {error}"
        ) from error


def _request_of(compiler: Any, call: Call, surroundings: Surroundings) -> Request:
    options, target = options_of(compiler, call)
    if options.get(WITH_TVM_FFI) is False:
        passed, named = passed_values(call)
        try:
            check_passed([*passed, *named.values()])
        except RequestError as error:
            raise RequestError(f"{call.name}: {error}") from None
    described = _described(call)
    device = surroundings.device(target)
    given = surroundings.given(target, device)
    code = slice_of(described.code)
    try:
        state = code.state(given)
    except Outdated:
        code = slice_of(described.code, anew=True)
        state = code.state(given)
    request = Request(
        callable=call.name,
        configuration=described.configuration,
        arguments=described.arguments,
        options=options,
        target=target,
        device=device,
        code=dict(sorted({**_fingerprints(code), DSL: surroundings.dsl()}.items())),
        state=dict(sorted(state.items())),
    )
    try:
        size = len(request.encoded())
    except (TypeError, OverflowError) as error:
        raise RequestError(f"{call.name}: {error}") from None
    if size > MAX_REQUEST_BYTES:
        raise RequestError(
            f"{call.name}: its description has {size} bytes, expected at most {MAX_REQUEST_BYTES}"
        )
    return request


def code_of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> CodeSlice:
    """The code that a call's request follows from."""
    return slice_of(_described(call_of(arguments, keywords)).code)


class _Described(NamedTuple):
    """The described call, and the functions and classes that its request follows from, by ``id``."""

    configuration: Value
    arguments: Mapping[str, Value]
    code: Mapping[int, Any]


def _described(call: Call) -> _Described:
    describer = Describer()
    configuration = describer.argument(call.name, call.subject)
    describer.code.setdefault(id(call.function), call.function)
    describer.code |= {id(function): function for function in patches().functions}
    return _Described(configuration, dict(described_arguments(describer, call)), describer.code)


def _fingerprints(code: CodeSlice) -> dict[str, str]:
    """Fingerprints of a slice and of patches to the DSL."""
    both = (patches().code, code.code)
    return {name: joined(own[name] for own in both if name in own) for name in {*both[0], *both[1]}}
