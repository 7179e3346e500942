#!/bin/sh
# What the tests and benchmarks use beyond Python. Nothing is needed; what is missing is said, with what it costs.
set -eu

if command -v "${CC:-cc}" >/dev/null 2>&1; then
    echo "test setup: C compiler found, the load generator can be built"
else
    echo "test setup: no C compiler: benchmarks are skipped, their load generator is written in C"
fi

if [ -n "${FLUX_PREFIX:-}" ]; then
    if [ -x "$FLUX_PREFIX/bin/flux" ]; then
        echo "test setup: interop against the flux-core in FLUX_PREFIX"
    else
        echo "test setup: FLUX_PREFIX is set, but FLUX_PREFIX/bin/flux is not there" >&2
        exit 1
    fi
else
    echo "test setup: FLUX_PREFIX is not set: interop with a live flux-core is skipped, its captured messages are replayed"
fi
