"""Rendezvous through the store that ``torch.distributed`` passes to a backend."""

from __future__ import annotations

import torch.distributed as dist

_KEY = "kolo"


class StoreBoard:
    """A board on a store: rank 0 writes its address under one key, and the others read it. No call blocks in the store for long,
    so that the deadline for joining holds with any kind of store."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def publish(self, notice: bytes) -> None:
        self._store.set(_KEY, notice)

    def read(self) -> bytes | None:
        # A get would block until the key exists, and block all other users of this client too.
        return self._store.get(_KEY) if self._store.check([_KEY]) else None

    def name(self) -> str:
        return f"the {type(innermost(self._store)).__name__} of init_process_group"

    def served_by(self) -> str | None:
        return getattr(innermost(self._store), "host", None)


def innermost(store: dist.Store) -> dist.Store:
    """Returns the store below all prefix stores."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store
