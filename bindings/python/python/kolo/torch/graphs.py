"""Keeps ``torch.compile`` out of Kolo's own code.

Dynamo follows a call of ``torch.distributed`` into the methods of a process group that is written in Python, where it finds
addresses and handles that it cannot put into a graph. With Gloo it meets C++ at this point, and breaks the graph.
"""

from __future__ import annotations

import types

import torch


def keep_out(*classes: type) -> None:
    """Makes every method of these classes, and of those of ours that they derive from, a break in the graph.

    What a method calls runs as it does without ``torch.compile``, too.
    """
    for cls in classes:
        for each in cls.__mro__:
            if each.__module__.startswith(__package__):
                for name, member in list(vars(each).items()):
                    if isinstance(member, types.FunctionType):
                        setattr(each, name, kept_out(member))


def kept_out(function: types.FunctionType) -> types.FunctionType:
    """The same function, which breaks the graph where it is called."""
    # What torch.compiler.disable does, without a wrapper: that one takes 0.4 us a call, and importing Dynamo takes seconds.
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:
        return torch.compiler.disable(function)
    # Dynamo asks the function before it inlines a call of it, and the code object before it compiles a frame.
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    function._torchdynamo_disable = True
    return function
