"""A bar on stderr: redrawn in place on a terminal, one line per run elsewhere."""

from __future__ import annotations

import sys
import time

WIDTH = 24
REDRAW_SECONDS = 0.2


class Progress:
    """Counts to `total`. A disabled bar (on any rank but 0) prints nothing."""

    def __init__(self, title: str, total: int, enabled: bool) -> None:
        self._title = title
        self._total = total
        self._enabled = enabled
        self._terminal = sys.stderr.isatty()
        self._done = 0
        self._start = time.monotonic()
        self._drawn = 0.0

    def advance(self) -> None:
        self._done += 1
        now = time.monotonic()
        if self._enabled and self._terminal and now - self._drawn > REDRAW_SECONDS:
            self._drawn = now
            self._draw("")

    def finish(self, summary: str) -> None:
        if self._enabled:
            self._draw(f"  {summary}\n")

    def _draw(self, end: str) -> None:
        filled = WIDTH * self._done // max(1, self._total)
        bar = "#" * filled + "." * (WIDTH - filled)
        start = "\r" if self._terminal else ""
        elapsed = time.monotonic() - self._start
        sys.stderr.write(f"{start}{self._title:<38} [{bar}] {elapsed:6.1f} s{end}")
        sys.stderr.flush()
