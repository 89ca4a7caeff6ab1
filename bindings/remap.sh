# Sourced by scripts that build what users get, with the root of the repository in `root`: no path of the machine that builds ends
# up in messages. A path may contain spaces, so the flags are separated by the byte that Cargo reserves for that.
# shellcheck shell=sh
remap_paths() {
    separator=$(printf '\037')
    if [ -z "${CARGO_ENCODED_RUSTFLAGS+set}" ]; then
        # Cargo ignores RUSTFLAGS where this variable is set.
        # shellcheck disable=SC2086 # words
        CARGO_ENCODED_RUSTFLAGS=$(set -f; set -- ${RUSTFLAGS:-}; IFS=$separator; printf %s "$*")
    fi
    remap="--remap-path-prefix=$root=kolo$separator--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
    # Flags that are there already are not repeated: other flags would have everything built anew.
    case $CARGO_ENCODED_RUSTFLAGS in
        *"$remap"*) ;;
        *) CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS:+$CARGO_ENCODED_RUSTFLAGS$separator}$remap ;;
    esac
    export CARGO_ENCODED_RUSTFLAGS
}
