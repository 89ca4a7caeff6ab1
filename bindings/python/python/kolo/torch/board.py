"""Rendezvous through the store that ``torch.distributed`` hands over."""

from __future__ import annotations

import torch.distributed as dist

_KEY = "kolo"


class StoreBoard:
    """Rank 0 leaves its address under one key; the others read it. Whatever store it is, nobody blocks in it for long,
    so that the deadline for joining holds."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def publish(self, notice: bytes) -> None:
        self._store.set(_KEY, notice)

    def read(self) -> bytes | None:
        # A get would block until the key is there, and with it everybody who shares this client.
        return self._store.get(_KEY) if self._store.check([_KEY]) else None

    def name(self) -> str:
        return f"the {type(innermost(self._store)).__name__} of init_process_group"

    def served_by(self) -> str | None:
        return getattr(innermost(self._store), "host", None)


def innermost(store: dist.Store) -> dist.Store:
    """The store that all prefixes are put before."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store
