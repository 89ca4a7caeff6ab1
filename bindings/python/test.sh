#!/usr/bin/env bash
# Builds the wheel, installs it into a virtual environment of its own, and runs the tests there.
#
#   bindings/python/test.sh [arguments for pytest]
#
# The environment is kept in target/python-venv. KOLO_PYTHON names the interpreter (default python3). If Python is missing or
# torch cannot be installed, it says so and runs the tests that it can.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
target="${CARGO_TARGET_DIR:-$root/target}"
venv="$target/python-venv"
python="${KOLO_PYTHON:-python3}"

if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  echo "skipped: there is no $python with venv"
  exit 0
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
in_venv="$venv/bin/python"
pip() { "$in_venv" -m pip install --quiet --disable-pip-version-check "$@"; }
site() { "$in_venv" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
has_torch() { "$in_venv" -c 'import torch' 2>/dev/null; }

if ! "$in_venv" -c 'import maturin, numpy, pytest' 2>/dev/null; then
  pip 'maturin>=1.8,<2' numpy pytest || { echo "skipped: pip cannot install maturin, numpy and pytest here"; exit 0; }
fi

# Installs the CPU wheel where the index has one; else the CUDA wheel, without the gigabytes that it depends on.
install_torch() {
  local offered
  offered="$("$in_venv" -m pip install --disable-pip-version-check --dry-run torch 2>/dev/null)" || return 1
  if ! grep -qi 'nvidia\|cuda' <<<"$offered"; then
    pip torch
    return
  fi
  pip filelock fsspec jinja2 networkx sympy typing_extensions setuptools || return 1
  pip --no-deps torch && "$in_venv" "$here/tools/cuda_stand_ins.py" "$(site)"
}
if ! has_torch && ! { install_torch && has_torch; }; then
  echo "skipped: the tests of the torch backend, since torch cannot be installed here"
fi
# torchft is installed without its dependencies, because one of them is torch with all of CUDA.
if has_torch && ! "$in_venv" -c 'import torchft' 2>/dev/null &&
  ! { pip opentelemetry-sdk opentelemetry-exporter-otlp-proto-http && pip --no-deps torchft; }; then
  echo "skipped: the tests of torchft's process group, since torchft cannot be installed here"
fi

rm -rf "$target/wheels"
(cd "$here" && "$venv/bin/maturin" build --release --quiet --interpreter "$in_venv" --out "$target/wheels")
wheel=("$target"/wheels/kolo-*-cp39-abi3-*.whl)
bytes="$(stat -c %s "${wheel[0]}")"
echo "$(basename "${wheel[0]}"): $bytes bytes"
[ "$bytes" -lt 10000000 ] || { echo "the wheel must be below 10 MB"; exit 1; }
pip --force-reinstall --no-deps "${wheel[0]}"

# Not in the source folder, because Python would import the package there, which lacks the compiled module.
cd "$here/tests"
exec "$in_venv" -m pytest -q -rs --rootdir "$here/tests" "${@:-.}"
