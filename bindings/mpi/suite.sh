#!/usr/bin/env bash
# Runs mpi4py's own test suite on Kolo's libmpi.so.12, and prints the passes per chapter, for 1 to 5 ranks or the numbers given.
#
#   bindings/mpi/suite.sh [RANKS...]
#
# Installs mpi4py and NumPy in an environment below target/, and unpacks the suite from mpi4py's source archive; both come from
# the package index. The wheel is used as it is. Fails if a chapter that Kolo supports has fewer than 95 % passes.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$here/../.."
target="${CARGO_TARGET_DIR:-$root/target}"
version=4.1.2
home="$target/mpi4py"
python="$home/venv/bin/python"

# Prints the reason, and exits.
skip() { echo "skipped: $1"; exit 0; }

command -v python3 >/dev/null || skip "there is no python3"
mkdir -p "$home"
if ! "$python" -c 'import mpi4py' 2>/dev/null; then
  python3 -m venv "$home/venv" 2>/dev/null || skip "python3 has no venv"
  "$python" -m pip install --quiet --disable-pip-version-check "mpi4py==$version" numpy || skip "pip cannot install mpi4py here"
fi
if [ ! -d "$home/mpi4py-$version/test" ]; then
  "$python" -m pip download --quiet --disable-pip-version-check --no-binary :all: --no-deps -d "$home" "mpi4py==$version" ||
    skip "pip cannot download mpi4py's sources here"
  tar -C "$home" -xzf "$home/mpi4py-$version.tar.gz"
fi

(cd "$root" && cargo build-as-tests --quiet --lib --bin kolo)
mkdir -p "$home/lib"
cp "$target/debug/libmpi.so" "$home/lib/libmpi.so.12"

# Kolo cannot spawn processes, so the test files for that are left out.
chapters=$(cd "$home/mpi4py-$version/test" && printf '%s\n' test_*.py | sed 's/^test_//; s/\.py$//' |
  grep -vE '^(spawn|util_pool|dynproc)$')
export MPI4PY_LIBMPI="$home/lib/libmpi.so.12" MPI4PY_TEST_SPAWN=0
# The tests of files sync after every step, which takes no time if the files are in memory.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm
cd "$home/mpi4py-$version"
all=0 good=0 bad=""
for ranks in "${@:-1 2 3 4 5}"; do
  for ranks in $ranks; do
    for chapter in $chapters; do
      log="$home/$ranks-$chapter.log"
      # Ranks that share processors take turns: on a busy machine, five ranks take three minutes for the one-sided chapters.
      timeout -k 5 $((60 + 60 * ranks)) "$target/debug/kolo" run -n "$ranks" -- "$python" test/main.py --no-builddir -q -i "test_$chapter.py" \
        >"$log" 2>&1 && code=0 || code=$?
      # The rank with the worst result counts.
      ran=$(sed -n 's/.*Ran \([0-9]*\) test.*/\1/p' "$log" | sort -n | tail -n 1)
      failed=$(sed -n 's/.*FAILED (\(.*\)).*/\1/p' "$log" | sed 's/skipped=[0-9]*//' | grep -oE '[0-9]+' | sort -n | tail -n 1 || true)
      [ "$code" = 0 ] && failed=0
      : "${ran:=1}" "${failed:=$ran}"
      [ "$failed" -gt "$ran" ] && failed=$ran
      all=$((all + ran)) good=$((good + ran - failed))
      printf '%s ranks, %-16s %4d of %4d\n' "$ranks" "$chapter" "$((ran - failed))" "$ran"
      [ "$failed" = 0 ] || bad="$bad $ranks:$chapter"
    done
  done
done
echo "$good passed of $all ($((1000 * good / all / 10)).$((1000 * good / all % 10)) %); with failures:${bad:- none}"
[ $((100 * good)) -ge $((95 * all)) ]
