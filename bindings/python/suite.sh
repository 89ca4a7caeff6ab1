#!/usr/bin/env bash
# PyTorch's own distributed tests with Gloo and Kolo, side by side; fails if Kolo fails where Gloo does not.
#
#   bindings/python/suite.sh [arguments for tests/suite/suite.py]
#
# Runs in the environment that bindings/python/test.sh makes. On an idle machine, takes two minutes per backend and number of ranks.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
target="${CARGO_TARGET_DIR:-$here/../../target}"
in_venv="$target/python-venv/bin/python"

if ! "$in_venv" -c 'import torch, kolo' 2>/dev/null; then
  echo "skipped: there is no environment with torch and kolo; bindings/python/test.sh makes it"
  exit 0
fi
# PyTorch's tests import expecttest.
if ! "$in_venv" -c 'import expecttest' 2>/dev/null &&
  ! "$in_venv" -m pip install --quiet --disable-pip-version-check expecttest; then
  echo "skipped: pip cannot install expecttest here"
  exit 0
fi
# Not in the source folder, because Python would import the package there, which lacks the compiled module.
cd "$here/tests"
exec "$in_venv" suite/suite.py "$@"
