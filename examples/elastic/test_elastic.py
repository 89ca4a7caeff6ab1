"""Small runs of this folder's programs: `python -m pytest examples/elastic`."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("kolo")

sys.path.insert(0, str(Path(__file__).resolve().parent))
import disturb  # noqa: E402
from crew import Event  # noqa: E402
from train import SHARD_IMAGES, SHARDS, shard_images  # noqa: E402

LIMIT_SECONDS = 240
IMAGES = Path(__file__).resolve().parent.parent / "data"


def run(ranks: int, steps: int, events: str = "") -> disturb.Outcome:
    return disturb.run(Namespace(model="mlp", steps=steps, data=IMAGES, limit=LIMIT_SECONDS), ranks, events)


def test_the_bits_do_not_depend_on_who_dies(tmp_path: Path) -> None:
    """Rank 0 is killed, and then its successor; another rank is stopped until the others have gone on without it; a new
    one joins."""
    steps = 120
    reference = run(1, steps)
    disturbed = run(4, steps, "5:kill:first,15:add,30:pause:3:0.2,40:stop:2:3,90:kill:first")
    killed = [disturbed.events[0].rank, disturbed.events[-1].rank]
    assert killed[0] == 0 and [event.rank for event in disturbed.events[1:-1]] == [4, 3, 2]
    assert all(disturbed.statuses[rank] == -9 for rank in killed)
    assert disturbed.statuses[4] in (0, -9) and disturbed.statuses.count(0) >= 1, disturbed.statuses
    assert len(reference.hashes) == 1 and disturbed.hashes == reference.hashes
    ranks = [ranks for *_, ranks in disturbed.steps]
    assert ranks[0] == 4 and ranks[-1] < 4
    assert any(now > before for before, now in zip(ranks, ranks[1:])), "the new one has come"
    pytest.importorskip("matplotlib")
    from plot import draw

    draw(disturbed, reference, tmp_path / "throughput.svg")
    dashed = (tmp_path / "throughput.svg").read_text().count("stroke-dasharray")
    assert dashed >= 2 * len(disturbed.events), "a line for each event in both panels"


def test_every_step_has_images_of_its_own() -> None:
    """An epoch uses each image once, whatever the number of ranks."""
    steps, count = 5, 5 * SHARDS * SHARD_IMAGES
    seen = [int(image) for step in range(steps) for shard in range(SHARDS) for image in shard_images(step, shard, count)]
    assert sorted(seen) == list(range(count))


def test_events_that_make_no_sense() -> None:
    assert Event.parse("3:stop:1:2.5") == Event(3, "stop", "1", 2.5)
    assert Event.parse("7:add").what == "add"
    with pytest.raises(SystemExit, match="killed, stopped, paused or added"):
        Event.parse("3:burn:1")
