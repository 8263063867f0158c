#!/bin/sh
# Runs a command with the compiled kernels of the image that suit this processor. All kernels give
# the same answers.
set -eu

# The loader of glibc lists the levels of x86-64 that this processor has.
levels="$(/lib64/ld-linux-x86-64.so.2 --help 2>/dev/null || true)"
has_level() {
    printf '%s\n' "$levels" | grep -q "$1 (supported"
}

if [ -z "${NUMBA_CPU_NAME:-}" ]; then
    if has_level x86-64-v4; then
        export NUMBA_CPU_NAME=x86-64-v4
    elif has_level x86-64-v3; then
        export NUMBA_CPU_NAME=x86-64-v3
    else
        # The image has no kernels for this processor: compile them, and keep them with the indexes,
        # the only folder that can be written.
        unset NUMBA_CPU_NAME NUMBA_CPU_FEATURES
        export DIVGRPC_KERNEL_CACHE="${DIVGRPC_DATA_DIR:-/tmp}/.kernels"
    fi
fi

exec "$@"
