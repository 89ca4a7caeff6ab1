"""What all tests share."""

import os
import sys
from pathlib import Path

# Because ranks share the processors, and because a parent that has started OpenMP's threads cannot be forked.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))
