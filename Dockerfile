# Headgate as a container image, in two sizes.
#
#   docker build -t headgate .                            brokers, gateway with dashboard, NFP, oslo proxy
#   docker build -t headgate-spark --target spark .       the same, PySpark and a Java runtime (headgate pipeline)
#   podman build --format docker -t headgate .            podman and buildah: their own format knows no HEALTHCHECK
#   docker run --rm headgate                              one broker, with the settings of /etc/headgate/broker.toml
#   docker run --rm --read-only --tmpfs /run:mode=1777 --tmpfs /tmp:mode=1777 headgate
#
# What runs writes to /run, /var/lib/headgate and /tmp only, as any user (--user): there it makes folders of its own, mode
# 0700. Below them /run/headgate has the sockets. No key is in the image: `headgate cluster init /keys` makes them.

# Rebuilds get the fixes of the base. To pin it for good: docker buildx imagetools inspect python:3.11-slim-bookworm, then
# --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:DIGEST
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# ---------------------------------------------------------------- wheels, then an environment without pip

FROM ${PYTHON_IMAGE} AS tools
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY deploy/requirements-build.txt deploy/
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-compile --require-hashes --only-binary :all: -r deploy/requirements-build.txt

FROM tools AS build
# the compiler of what is hot; it is not in the image
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# what others made first: it changes less often than the source
COPY deploy/requirements.txt deploy/
RUN python -m venv --without-pip /opt/headgate \
    && /opt/build/bin/pip --python /opt/headgate/bin/python install --no-compile --no-deps --require-hashes \
        --only-binary :all: -r deploy/requirements.txt
COPY pyproject.toml README.md LICENSE headgate.py pyspark_headgate.py ./
COPY deploy/compile.py deploy/index_readme.py deploy/
COPY broker broker
COPY gateway gateway
COPY .ci/smoke .ci/
# What only debuggers and other projects' tests read is a quarter of it; libraries below *.libs are patched, and strip breaks such.
# No index, no isolation: nothing that is not listed with its hash gets in; types are read where Headgate will run
RUN echo /opt/headgate/lib/python3.11/site-packages > /opt/build/lib/python3.11/site-packages/headgate.pth \
    && HATCH_BUILD_HOOK_ENABLE_CUSTOM=true /opt/build/bin/pip wheel --no-index --no-deps --no-build-isolation \
        --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/headgate/bin/python install --no-compile --no-index --no-deps /wheels/*.whl \
    && find /opt/headgate/lib -name '*.libs' -prune -o -name '*.so' -exec strip --strip-debug {} + \
    && find /opt/headgate/lib -type d -name tests -prune -exec rm -rf {} + \
    && PYTHONDONTWRITEBYTECODE=1 PATH=/opt/headgate/bin:$PATH sh .ci/smoke compiled \
    && /opt/headgate/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/headgate/lib

FROM tools AS build-spark
COPY deploy/requirements-spark.txt deploy/
# PySpark comes as source only; it has nothing to compile
RUN /opt/build/bin/pip wheel --no-deps --require-hashes --no-build-isolation --only-binary :all: --no-binary pyspark \
        --wheel-dir /wheels -r deploy/requirements-spark.txt \
    && /opt/build/bin/pip install --no-compile --no-index --no-deps --target /opt/spark /wheels/*.whl \
    && rm -rf /wheels \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/spark

# ---------------------------------------------------------------- what runs

FROM ${PYTHON_IMAGE} AS runtime
# volumes take owner and mode from these folders when they are new
RUN groupadd --gid 10001 headgate \
    && useradd --uid 10001 --gid headgate --no-log-init --no-create-home --home-dir /var/lib/headgate \
        --shell /usr/sbin/nologin headgate \
    && install -d -m 1777 /run /var/lib/headgate \
    && install -d -o headgate -g headgate -m 0700 /keys /var/lib/headgate/journal /var/lib/headgate/warehouse
COPY --from=build /opt/headgate /opt/headgate
COPY deploy/broker.toml /etc/headgate/broker.toml
# XDG_RUNTIME_DIR, not RUNTIME_DIRECTORY: what is mounted at /run may belong to anybody, /run/headgate is made by us
ENV PATH=/opt/headgate/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/var/lib/headgate \
    XDG_RUNTIME_DIR=/run XDG_STATE_HOME=/var/lib/headgate
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["headgate", "health"]
ENTRYPOINT ["headgate"]
CMD ["broker", "--config", "/etc/headgate/broker.toml"]

FROM runtime AS spark
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="headgate-spark" \
      org.opencontainers.image.description="Headgate with PySpark: the journal of a message broker as tables" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 0:0
# slim images have no folder for manuals, and this package fails without it
# hadolint ignore=DL3008
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/spark /opt/spark
RUN echo /opt/spark > /opt/headgate/lib/python3.11/site-packages/spark.pth
# its workers find this interpreter, and with it the packages of both folders
ENV PYSPARK_PYTHON=/opt/headgate/bin/python PYSPARK_DRIVER_PYTHON=/opt/headgate/bin/python
USER 10001:10001
HEALTHCHECK NONE

# the last target is the one that is built unless another is asked for
FROM runtime AS headgate
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="headgate" \
      org.opencontainers.image.description="A message broker for the Flux message protocol, and its gateway to the web" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
