#!/bin/sh
# Where no registry can be reached: images that stand in for python:3.11-slim-bookworm and redis:7.2-bookworm, made from
# Debian packages by debootstrap. As root, with podman. What is there already is kept.
#
#   sh tests/containers/base_image.sh [python|redis]...
#
# How they differ from the official ones: Python is Debian's (in /usr, with links in /usr/local/bin; system-wide installs
# land in dist-packages), its patch level too; Redis is Debian's 7.0, without the entry point script. What this machine
# needs to reach its package index (certificates, pip's settings) is put into the stand-in, so that no Dockerfile has it.
set -eu

release=bookworm
python=docker.io/library/python:3.11-slim-$release
redis=docker.io/library/redis:7.2-$release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

there() {
    podman image exists "$1" && echo "base image: $1 is there"
}

# the mirror that this machine's apt uses for the release
mirror() {
    apt-get indextargets --format '$(SITE)' "Codename: $release" 'Created-By: Packages' | head -n 1
}

make_python() {
    there "$python" && return
    began=$(date +%s)
    root=$work/root
    debootstrap --variant=minbase --include=python3,libpython3-dev,python3-venv,python3-pip,ca-certificates "$release" "$root" "$(mirror)" \
        >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
    rm -f "$root"/usr/lib/python3.*/EXTERNALLY-MANAGED
    for name in python python3 python3.11; do ln -s /usr/bin/python3.11 "$root/usr/local/bin/$name"; done
    ln -s /usr/bin/pip3 "$root/usr/local/bin/pip"
    # nor has the official one any of these
    rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* \
        "$root"/usr/share/doc "$root"/usr/share/locale "$root"/usr/share/man
    find "$root"/usr/lib "(" -name __pycache__ -o -name "libpython*.a" ")" -prune -exec rm -rf {} +
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    if [ -f /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/pip.conf"; fi
    tar -C "$root" -c . | podman import --change 'CMD ["python3"]' --change 'ENV LANG=C.UTF-8' \
        --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' - "$python" >/dev/null
    echo "base image: $python made in $(($(date +%s) - began)) s"
}

make_redis() {
    there "$redis" && return
    make_python
    printf '%s\n' "FROM $python" \
        'RUN apt-get update && apt-get install -y --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*' \
        'CMD ["redis-server"]' >"$work/Dockerfile"
    podman build --quiet --format docker --network host --tag "$redis" "$work" >/dev/null
    echo "base image: $redis made"
}

for wanted in "${@:-python}"; do
    "make_$wanted"
done
