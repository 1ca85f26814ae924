"""Decide whether a call may go directly to the bundle, or something in torch has to see the operator.

Each time torch's dispatcher enters Python, it costs about as much as the launch itself, for nothing if the
call is plain: on plain tensors that autograd need not follow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad, profiler

_PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))
"""Classes of real tensors: not fake, traced, batched or wrapped."""

# Bound here: most of a call's cost is looking up names.
_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._is_tracing
_grad_enabled = torch.is_grad_enabled


def is_plain(*operands: Any) -> bool:
    """Whether a call needs only the kernel's launch: no tracing, transform, mode, profile or gradient.

    Operands that are not given are None.
    """
    if (
        _compiling()
        or _dispatch_modes()
        or _function_modes()
        or _transforms() is not None
        or _tracing()
        or forward_ad._current_level >= 0
        or profiler._is_profiler_enabled
    ):
        return False
    gradients = _grad_enabled()
    for operand in operands:
        if type(operand) not in _PLAIN:
            return False
        if operand is not None and (operand.is_neg() or (gradients and operand.requires_grad)):
            return False
    return True
