#!/bin/sh
# Builds Kolo and installs it: the command, the C library with headers, pkg-config and CMake files, the MPI libraries, manual pages
# and completions.
#
#     deploy/install.sh [--prefix FOLDER] [--destdir FOLDER] [--profile NAME]
#
# The default prefix is /usr/local; --destdir is put before the prefix, which helps to build packages. The default profile is "release".
# All installed files are listed in PREFIX/share/kolo/installed, so that `xargs -d '\n' rm -f < PREFIX/share/kolo/installed` uninstalls.
set -eu

prefix=/usr/local
destdir=
profile=release
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) prefix=$2; shift 2 ;;
        --destdir) destdir=$2; shift 2 ;;
        --profile) profile=$2; shift 2 ;;
        *) echo "usage: $0 [--prefix FOLDER] [--destdir FOLDER] [--profile NAME]" >&2; exit 2 ;;
    esac
done
case $prefix in
    /*) ;;
    *) echo "$0: the prefix must be absolute, and is '$prefix'" >&2; exit 2 ;;
esac

root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
cargo=${CARGO:-cargo}
build="build --package kolo-cli --package kolo-mpi --package kolo-mpi-abi"
case $profile in
    dev) built=$target/debug build="build-as-tests --lib --bin kolo" ;;
    *) built=$target/$profile ;;
esac
if [ "$profile" = release ]; then
    . "$root/bindings/remap.sh"
    remap_paths
fi
# shellcheck disable=SC2086 # words
(cd "$root" && "$cargo" $build --profile "$profile" --target-dir "$target" >&2)
kolo=$built/kolo

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
archive=$("$root/bindings/c/dist.sh" --profile "$profile" --output "$stage")
mkdir "$stage/tree"
tar -C "$stage/tree" --strip-components=1 -xf "$archive"
cd "$stage/tree"
install -D -m 755 "$kolo" bin/kolo
# In a folder of their own, so that they do not replace another MPI unless the user asks for it.
install -D -m 755 "$built/libmpi.so" lib/kolo-mpi/libmpi.so.12
install -D -m 755 "$built/libmpi_abi.so" lib/kolo-mpi/libmpi_abi.so.1
ln -s libmpi.so.12 lib/kolo-mpi/libmpi.so
ln -s libmpi_abi.so.1 lib/kolo-mpi/libmpi_abi.so
mkdir include/kolo-mpi
cp -R "$root"/bindings/mpi/include/* include/kolo-mpi/
if [ "$profile" = release ]; then strip --strip-debug bin/kolo lib/kolo-mpi/*.so.*; fi
mkdir -p share/man/man1 share/kolo
"$kolo" man share/man/man1
completions() { # SHELL FILE
    mkdir -p "$(dirname "$2")"
    "$kolo" completions "$1" > "$2"
}
completions bash share/bash-completion/completions/kolo
completions zsh share/zsh/site-functions/_kolo
completions fish share/fish/vendor_completions.d/kolo.fish
{ find . ! -type d | sed "s|^\.|$prefix|" | sort; echo "$prefix/share/kolo/installed"; } > "$stage/installed"
mv "$stage/installed" share/kolo/installed

to=$destdir$prefix
mkdir -p "$to"
# Links are copied as links; folders that exist already keep their owner and mode.
tar -cf - bin include lib share | tar -C "$to" --no-same-owner --no-overwrite-dir -xf -
echo "installed in $to: programs in C are built with PKG_CONFIG_PATH=$prefix/lib/pkgconfig or CMAKE_PREFIX_PATH=$prefix. They find the" \
    "library by the -rpath of docs/c-api.md, by LD_LIBRARY_PATH=$prefix/lib, or, if the system searches $prefix/lib, after ldconfig;" \
    "programs of MPI find theirs by LD_LIBRARY_PATH=$prefix/lib/kolo-mpi"
