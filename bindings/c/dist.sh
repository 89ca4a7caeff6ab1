#!/bin/sh
# Builds the C library and packs it: header, libraries, pkg-config and CMake files, examples, licences.
#
#     bindings/c/dist.sh [--profile NAME] [--output FOLDER]
#
# The profile is "release" unless said otherwise, the folder target/dist. Prints the path of the archive.
# The same sources and compiler give the same archive.
set -eu

profile=release
output=
while [ $# -gt 0 ]; do
    case $1 in
        --profile) profile=$2; shift 2 ;;
        --output) output=$2; shift 2 ;;
        *) echo "usage: $0 [--profile NAME] [--output FOLDER]" >&2; exit 2 ;;
    esac
done

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
output=${output:-$target/dist}
cargo=${CARGO:-cargo}
cd "$root"

version=$("$cargo" pkgid --offline -p kolo-c 2>/dev/null | sed 's/.*[#@]//')
# The soname, as build.rs sets it.
case $version in
    0.*) soversion=${version%.*} ;;
    *) soversion=${version%%.*} ;;
esac
# The list that `rustc --print native-static-libs` prints.
system_libraries="-lgcc_s -lutil -lrt -lpthread -lm -ldl"

build="build --package kolo-c"
case $profile in
    dev) built=$target/debug build=build-as-tests ;;
    *) built=$target/$profile ;;
esac
# Other profiles are for tests, and reuse what was built.
if [ "$profile" = release ]; then
    . "$root/bindings/remap.sh"
    remap_paths
fi
# shellcheck disable=SC2086 # words
"$cargo" $build --lib --profile "$profile" --target-dir "$target" >&2

name=kolo-c-$version-$(uname -m)-$(uname -s | tr '[:upper:]' '[:lower:]')
mkdir -p "$output"
output=$(cd "$output" && pwd)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
to=$stage/$name
mkdir -p "$to/include" "$to/lib/pkgconfig" "$to/lib/cmake/kolo" "$to/share/doc/kolo/examples"

cp "$here/include/kolo.h" "$here/include/kolo.hpp" "$to/include/"
cp "$built/libkolo.so" "$to/lib/libkolo.so.$version"
ln -s "libkolo.so.$version" "$to/lib/libkolo.so.$soversion"
ln -s "libkolo.so.$soversion" "$to/lib/libkolo.so"

# The static library too shows only kolo*: it is one relocatable object in which all other symbols are local, so that a program
# may link another Rust library statically as well. The bitcode of Rust's own library is removed, since it is no longer needed.
ld -r -o "$stage/kolo.o" --whole-archive "$built/libkolo.a"
objcopy --wildcard --keep-global-symbol='kolo*' --strip-debug --remove-section=.llvmbc \
    --remove-section=.llvmcmd "$stage/kolo.o"
ar rcD "$to/lib/libkolo.a" "$stage/kolo.o"
strip --strip-debug "$to/lib/libkolo.so.$version"

fill() {
    sed -e "s|@VERSION@|$version|g" -e "s|@SOVERSION@|$soversion|g" -e "s|@SYSTEM_LIBRARIES@|$system_libraries|g" \
        -e "s|@SYSTEM_LIBRARIES_LIST@|$(echo "$system_libraries" | tr ' ' ';')|g" "$1"
}
fill "$here/packaging/kolo.pc.in" > "$to/lib/pkgconfig/kolo.pc"
fill "$here/packaging/koloConfig.cmake.in" > "$to/lib/cmake/kolo/koloConfig.cmake"
cat > "$to/lib/cmake/kolo/koloConfigVersion.cmake" <<EOF
set(PACKAGE_VERSION "$version")
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
# Before 1.0, minor versions may break programs.
if(PACKAGE_VERSION MATCHES "^\${PACKAGE_FIND_VERSION_MAJOR}[.]\${PACKAGE_FIND_VERSION_MINOR}[.]"
   AND NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
EOF
cp "$root/docs/c-api.md" "$root/LICENSE-APACHE" "$root/LICENSE-MIT" "$to/share/doc/kolo/"
cp "$here"/examples/* "$to/share/doc/kolo/examples/"

archive=$output/$name.tar.gz
when=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)}
tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$when" --mode=go=rX,u+rw,a-s -cf - "$name" |
    gzip -n -9 > "$archive"
echo "$archive"
