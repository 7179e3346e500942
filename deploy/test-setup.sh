#!/bin/sh
# What the tests and benchmarks use beyond Python. What is missing is said, with what it costs. As root on Debian
# (and what descends from it) Chromium is installed, which the tests of the dashboard drive; in CI they must run. Told
# `interop`, `bench` or `soak`, it installs a Java runtime for Spark, too; `bench` RabbitMQ, `soak` podman and faketime,
# `compiled` a C compiler.
set -eu

limit_s=600 # for all of apt: a mirror that hangs must not hang the tests

# -- Chromium --------------------------------------------------------------------------------------

browser() {
    for each in chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$each" && return
    done
    return 1
}

# apt runs only where it can work, without questions, and at most for limit_s; its output is shown when it fails
install_packages() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    log=$(mktemp)
    echo "test setup: installing $*"
    if DEBIAN_FRONTEND=noninteractive timeout "$limit_s" sh -c '
        apt-get -qq -o Acquire::Retries=2 update &&
        apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=120 install "$@"' sh "$@" >"$log" 2>&1 </dev/null; then
        rm -f "$log"
        return 0
    fi
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
}

if found=$(browser); then
    echo "test setup: $found found, the dashboard is tested in it"
elif { install_packages chromium-headless-shell fonts-dejavu-core || install_packages chromium fonts-dejavu-core; } && found=$(browser); then
    echo "test setup: $found installed, the dashboard is tested in it"
else
    echo "test setup: no Chromium (Debian: apt install chromium fonts-dejavu-core): the tests of the dashboard are skipped"
fi

if command -v node >/dev/null; then
    echo "test setup: node found, the codecs of client.js are tested in it, too"
else
    echo "test setup: no node: the codecs of client.js are tested in Chromium only"
fi

# -- Redis and RabbitMQ -------------------------------------------------------------------------------

if command -v redis-server >/dev/null; then
    echo "test setup: redis-server found, the shared directory of oslo is tested with it"
elif install_packages redis-server && command -v redis-server >/dev/null; then
    echo "test setup: redis-server installed, the shared directory of oslo is tested with it"
else
    echo "test setup: no redis-server (Debian: apt install redis-server): the directory of oslo is tested without Redis"
fi

# only the benchmarks compare with it
if [ "${1:-}" = bench ]; then
    if command -v rabbitmq-server >/dev/null || [ -x /usr/sbin/rabbitmq-server ]; then
        echo "test setup: rabbitmq-server found, oslo.messaging is measured beside it"
    elif install_packages rabbitmq-server; then
        echo "test setup: rabbitmq-server installed, oslo.messaging is measured beside it"
    else
        echo "test setup: no rabbitmq-server (Debian: apt install rabbitmq-server): no comparison for oslo.messaging"
    fi
fi

# -- units and networks -------------------------------------------------------------------------------

if command -v systemd-analyze >/dev/null || { install_packages systemd && command -v systemd-analyze >/dev/null; }; then
    echo "test setup: systemd-analyze found, the units are checked with it"
else
    echo "test setup: no systemd-analyze (Debian: apt install systemd): the units are only read"
fi
if command -v ip >/dev/null || { install_packages iproute2 && command -v ip >/dev/null; }; then
    echo "test setup: ip found, partitions are tested in network namespaces"
else
    echo "test setup: no ip (Debian: apt install iproute2): nothing is tested in network namespaces"
fi

# -- containers ---------------------------------------------------------------------------------------

# the long run alone brings up real containers
if [ "${1:-}" = soak ]; then
    if command -v podman >/dev/null; then
        echo "test setup: podman found, image and compose file are tested with it"
    elif install_packages podman buildah runc netavark aardvark-dns catatonit debootstrap iptables; then
        echo "test setup: podman installed, image and compose file are tested with it"
    else
        echo "test setup: no podman (Debian: apt install podman ...): image and compose file are only looked at"
    fi
    if command -v faketime >/dev/null || install_packages faketime; then
        echo "test setup: faketime found, clocks are stepped"
    else
        echo "test setup: no faketime (Debian: apt install faketime): no clock is stepped"
    fi
fi

# -- a Java runtime ---------------------------------------------------------------------------------

java_version() {
    command -v java >/dev/null || return 1
    java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'
}

# Spark needs 17 or later; the fast tests run none
case "${1:-}" in
interop | bench | soak) spark=yes ;;
*) spark= ;;
esac
if [ -z "$spark" ]; then
    :
elif [ "$(java_version || echo 0)" -ge 17 ]; then
    echo "test setup: Java $(java_version) found, the pipeline is tested with Spark"
elif { install_packages openjdk-17-jre-headless || install_packages default-jre-headless; } && [ "$(java_version || echo 0)" -ge 17 ]; then
    echo "test setup: Java $(java_version) installed, the pipeline is tested with Spark"
else
    echo "test setup: no Java 17 (Debian: apt install openjdk-17-jre-headless): the tests with Spark are skipped"
fi

# -- a C compiler ----------------------------------------------------------------------------

if command -v "${CC:-cc}" >/dev/null 2>&1; then
    echo "test setup: C compiler found, the load generator can be built"
elif [ "${1:-}" = compiled ] && install_packages gcc libc6-dev python3-dev; then
    echo "test setup: C compiler installed, the compiled wheel can be built"
else
    echo "test setup: no C compiler: benchmarks are skipped, their load generator is written in C"
fi

# -- a real flux-core ------------------------------------------------------------------------------

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
