"""Skips everything here where torch is not installed."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")
