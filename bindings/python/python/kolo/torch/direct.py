"""The arguments that direct calls of a group's methods give in place of torch's options: a root, an operator, a time-out.

``torch.distributed`` passes an options object. The methods of torch's own groups also take these values one by one, as in
``group.reduce(x, 1, ReduceOp.MAX)``, and so do Kolo's. A value belongs to the parameter that its type tells.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import ReduceOp

from .errors import Usage

#: The attribute of torch's options for each keyword of a direct call.
_ATTRIBUTES = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}

#: A tuple, since the members of the enumeration are not of the class ``ReduceOp``.
_OPERATORS = (ReduceOp, ReduceOp.RedOpType)


class Direct:
    """The values of a direct call, with the attributes of torch's options."""

    __slots__ = ("reduceOp", "rootRank", "timeout")

    #: As in torch, a direct call returns a work.
    asyncOp = True  # noqa: N815

    def __init__(self) -> None:
        self.rootRank = 0
        self.reduceOp = ReduceOp.SUM
        #: The group's own time-out.
        self.timeout = timedelta(0)


def options(name: str, takes: tuple[str, ...], opts, more: tuple, named: dict):
    """Returns torch's options as they are, ``None`` if there are none, and else :class:`Direct`.

    ``takes`` has the keywords that the operation ``name`` takes besides ``timeout``.
    """
    if not more and not named and (opts is None or hasattr(opts, "timeout")):
        return opts
    direct, seen = Direct(), set()
    given = [(_keyword(name, value), value) for value in (opts, *more) if value is not None]
    for keyword, value in (*given, *((keyword, value) for keyword, value in named.items() if value is not None)):
        if keyword not in ("timeout", *takes):
            raise Usage(f"{name}: it takes no '{keyword}', but {value!r} was given")
        if _keyword(name, value) != keyword:
            raise Usage(f"{name}: {value!r} was given as its '{keyword}'")
        if keyword in seen:
            raise Usage(f"{name}: two values were given for '{keyword}'")
        seen.add(keyword)
        setattr(direct, _ATTRIBUTES[keyword], value)
    return direct if seen else None


def _keyword(name: str, value) -> str:
    """Returns the keyword of the parameter that a value is for."""
    if isinstance(value, timedelta):
        return "timeout"
    if isinstance(value, _OPERATORS):
        return "op"
    if isinstance(value, int):
        return "root"
    raise Usage(f"{name}: {value!r} is neither torch's options, alone, nor a root, an operator or a time-out")
