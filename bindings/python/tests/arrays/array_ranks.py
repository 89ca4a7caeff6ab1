"""Ranks with a communicator."""

import harness

import kolo


def run(ranks, body, *arguments, **options):
    """Runs ``body(comm, *arguments)`` on every rank."""
    return harness.forked(ranks, _join, body, arguments, options.pop("settings", {}), **options)


def _join(rank, ranks, folder, body, arguments, settings):
    with kolo.init(f"file://{folder}/meet", rank=rank, world_size=ranks, **settings) as comm:
        body(comm, *arguments)
