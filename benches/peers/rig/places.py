"""Paths of files. Nothing is written outside the build directory unless results are published."""
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
REPOSITORY = HERE.parent.parent
DOCS = REPOSITORY / "docs"
TARGET = REPOSITORY / "target"
# Where setup.sh puts peers: one virtual environment each.
PEERS = TARGET / "peers"
BUILT = PEERS / "bin"
RESULTS = PEERS / "out"
