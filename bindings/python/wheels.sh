#!/usr/bin/env bash
# Builds wheels for Linux on x86-64 and on 64-bit ARM, which run with the glibc of 2012 (manylinux_2_17) and every later one.
#
#   bindings/python/wheels.sh [--profile NAME] [--output FOLDER] [TARGET...]
#
# By default the profile is "release", the folder target/wheels-all, and the targets are x86_64-unknown-linux-gnu and
# aarch64-unknown-linux-gnu. Zig links for all targets; it is installed from the package index, with maturin, into an environment
# below target/. If the standard library of a target is missing, rustup adds it. maturin fails if a wheel needs a newer glibc.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
target="${CARGO_TARGET_DIR:-$root/target}"
profile=release
output="$target/wheels-all"
while [ $# -gt 0 ]; do
  case $1 in
    --profile) profile=$2; shift 2 ;;
    --output) output=$2; shift 2 ;;
    -*) echo "usage: $0 [--profile NAME] [--output FOLDER] [TARGET...]" >&2; exit 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || set -- x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu

tools="$target/wheel-tools"
[ -x "$tools/bin/python" ] || "${KOLO_PYTHON:-python3}" -m venv "$tools"
"$tools/bin/python" -c 'import maturin, ziglang' 2>/dev/null ||
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check 'maturin>=1.8,<2' ziglang
PATH="$tools/bin:$PATH"
export PATH
# Keep paths of the build machine out of messages.
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$root=kolo --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
export RUSTFLAGS
for triple in "$@"; do
  if command -v rustup >/dev/null && ! rustup target list --installed | grep -qx "$triple"; then rustup target add "$triple" >&2; fi
  (cd "$here" && maturin build --profile "$profile" --quiet --locked --zig --target "$triple" --compatibility manylinux_2_17 \
    --auditwheel check --interpreter "$tools/bin/python" --out "$output" --target-dir "$target/wheel-build")
done
ls "$output"/kolo-*.whl
