#!/usr/bin/env bash
# Runs public programs as Debian ships them on Kolo's libmpi.so.12: NetPIPE (C), and the test programs of ScaLAPACK (Fortran and C),
# which check their own results. They were linked with MPICH, and their binaries are unchanged.
#
#   bindings/mpi/programs.sh [--all]
#
# Unpacks the packages below target/, without installing anything. --all runs every test program of ScaLAPACK that needs at most
# 4 ranks (some minutes); otherwise it runs a dozen. Fails if a program fails, or one of a program's own checks.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$here/../.."
target="${CARGO_TARGET_DIR:-$root/target}"
home="$target/mpi-programs"
ranks=4

# Prints the reason, and exits.
skip() { echo "skipped: $1"; exit 0; }

command -v apt-get >/dev/null && command -v dpkg >/dev/null || skip "this is no Debian"
mkdir -p "$home/packages"
if [ ! -d "$home/root" ]; then
  (cd "$home/packages" && apt-get download -qq netpipe-mpich2 scalapack-mpi-test scalapack-test-common libscalapack-mpich2.2 \
    libmpich12 libgfortran5 libquadmath0 libblas3 liblapack3) 2>/dev/null || skip "apt-get cannot download the programs here"
  for package in "$home"/packages/*.deb; do dpkg -x "$package" "$home/root.new"; done
  mv "$home/root.new" "$home/root"
fi
usr="$home/root/usr"
lib=$(dirname "$(find "$usr/lib" -name 'libscalapack-mpich.so*' | head -n 1)")

(cd "$root" && cargo build-as-tests --quiet --lib --bin kolo)
mkdir -p "$home/lib"
# The library gets Debian's name for it. The Fortran bindings remain MPICH's.
cp "$target/debug/libmpi.so" "$home/lib/libmpich.so.12"
export LD_LIBRARY_PATH="$home/lib:$lib:$lib/blas:$lib/lapack"

good=0 bad=""
# Runs a program in the folder of its input, and looks for a sign of success and for lines that report failures.
run() { # FOLDER PROGRAM SIGN-OF-SUCCESS
  local name=$2 log="$home/$2.log" began=$SECONDS
  if (cd "$1" && timeout -k 5 300 "$target/debug/kolo" run -n "$ranks" -- "./$name") >"$log" 2>&1 && grep -qE "$3" "$log" &&
    ! grep -E '^ *[1-9][0-9]* tests completed and failed|^ *\|.*[0-9]+ +[0-9]+ +[1-9][0-9]* +[0-9]+ *$' "$log"; then
    good=$((good + 1))
    printf '%-10s %4d s  %s\n' "$name" "$((SECONDS - began))" "$(grep -E 'tests completed and passed' "$log" | head -n 1 || true)"
  else
    bad="$bad $name"
    tail -n 15 "$log"
    printf '%-10s FAILED\n' "$name"
  fi
}

tests="$lib/scalapack/mpich-tests"
if [ "${1:-}" = --all ]; then
  solvers=$(cd "$tests" && find . -maxdepth 1 -name 'x[sdcz]*' -type f -printf '%f\n' | sort)
  kernels=$(cd "$tests/PBLAS" && find . -maxdepth 1 -name '[sdcz]pb*tst' -printf '%f\n' | sort)
else
  # Not those of the solvers with relatively robust representations (xssyevr): they use variables that they never set.
  solvers="xdqr xsnep xzinv xdgsep xcls xssep"
  kernels="spb1tst dpb2tst zpb3tst"
fi
for name in $solvers; do run "$tests" "$name" 'END OF TESTS|End of tests'; done
for name in $kernels; do run "$tests/PBLAS" "$name" 'End of Tests'; done
ranks=2
cp "$usr/bin/NPmpich2" "$home/NPmpich2"
(cd "$home" && timeout -k 5 120 "$target/debug/kolo" run -n 2 -- ./NPmpich2 -u 1048576 -n 10 -I) >"$home/netpipe.log" 2>&1 &&
  good=$((good + 1)) || { tail -n 15 "$home/netpipe.log"; bad="$bad NPmpich2"; }
echo "$good programs passed; failed:${bad:- none}"
[ -z "$bad" ]
