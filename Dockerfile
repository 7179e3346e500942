# One broker, not as root. Build: docker build -t headgate .   Run: docker run --rm headgate
# A configuration of your own: -v ./broker.toml:/etc/headgate/broker.toml:ro

FROM python:3.11-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/headgate
WORKDIR /src
# the dependencies first: they change less often than the source
COPY requirements.lock ./
RUN /opt/headgate/bin/pip install --constraint requirements.lock aiohttp cryptography msgspec prometheus-client PyJWT pyzmq rich typer websockets
COPY pyproject.toml README.md LICENSE ./
COPY broker ./broker
COPY gateway ./gateway
RUN /opt/headgate/bin/pip install --constraint requirements.lock .

FROM python:3.11-slim
LABEL org.opencontainers.image.title="headgate" \
      org.opencontainers.image.description="A message broker for the Flux message protocol" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 headgate \
    && useradd --uid 10001 --gid headgate --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin headgate \
    && install -d -o headgate -g headgate -m 0700 /run/headgate
COPY --from=build /opt/headgate /opt/headgate
COPY deploy/broker.toml /etc/headgate/broker.toml
# RUNTIME_DIRECTORY is where the broker puts its sockets unless the configuration says otherwise
ENV PATH=/opt/headgate/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 RUNTIME_DIRECTORY=/run/headgate
USER 10001:10001
STOPSIGNAL SIGTERM
# the one socket in that directory is this container's broker, whatever its rank
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 \
    CMD ["sh", "-c", "for s in /run/headgate/local-*; do FLUX_URI=local://$s exec headgate ping --count 1 broker; done"]
ENTRYPOINT ["headgate"]
CMD ["broker", "--config", "/etc/headgate/broker.toml"]
