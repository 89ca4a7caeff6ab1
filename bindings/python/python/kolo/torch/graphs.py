"""Keeps ``torch.compile`` out of Kolo's own code.

Dynamo traces a call of ``torch.distributed`` into the methods of a process group that is written in Python, where it finds
addresses and handles that it cannot put into a graph. With Gloo, it reaches C++ code at this point and breaks the graph.
"""

from __future__ import annotations

import types

import torch


def keep_out(*classes: type) -> None:
    """Makes calls of all methods of these classes, and of their base classes in this package, break the graph.

    Functions that such a method calls are not compiled either.
    """
    for cls in classes:
        for each in cls.__mro__:
            if each.__module__.startswith(__package__):
                for name, member in list(vars(each).items()):
                    if isinstance(member, types.FunctionType):
                        setattr(each, name, kept_out(member))


def kept_out(function: types.FunctionType) -> types.FunctionType:
    """Returns the same function, a call of which now breaks the graph."""
    # This does the same as torch.compiler.disable, but without its wrapper, which takes 0.4 us a call, and without importing
    # Dynamo, which takes seconds.
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:
        return torch.compiler.disable(function)
    # Dynamo asks the function before it inlines a call of it, and the code object before it compiles a frame.
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    function._torchdynamo_disable = True
    return function
