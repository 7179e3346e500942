"""From an address to a Handle: environment, retries, refusals."""

import asyncio
import errno
import os
import subprocess
import sys

import pytest

import broker.client
from broker.client.dialing import default_uri
from broker.errors import ConfigError, LinkBroken, LinkRefused
from tests.unit.client import tiny_broker
from tests.unit.client.peer import soon


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("FLUX_URI", "HEADGATE_URI", "FLUX_LOCAL_CONNECTOR_RETRY_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch):
    """A machine that stands still for a moment is no transport that waited."""
    monkeypatch.setattr("broker.client.dialing.PATIENT_S", 3600.0)


def test_uri_comes_from_the_environment(monkeypatch):
    with pytest.raises(ConfigError, match="FLUX_URI or HEADGATE_URI"):
        default_uri()
    monkeypatch.setenv("HEADGATE_URI", "tcp://there")
    assert default_uri() == "tcp://there"
    monkeypatch.setenv("FLUX_URI", "local:///here")
    assert default_uri() == "local:///here"


def test_connect_by_environment_and_by_address(rundir, monkeypatch):
    uri = f"local://{rundir}/s"

    async def main():
        _broker, listener = await tiny_broker.start(uri)
        async with broker.client.connect(uri) as h:
            assert await h.size() == 4
        monkeypatch.setenv("FLUX_URI", uri)
        h = await broker.client.connect()
        assert await h.rank() == 0
        await h.close()
        await listener.stop()

    asyncio.run(main())


def test_absent_socket_is_retried_with_doubled_pauses(rundir, monkeypatch):
    pauses = []
    real_sleep = asyncio.sleep

    async def sleep(pause_s):
        pauses.append(pause_s)
        await real_sleep(0)

    async def main(retries):
        pauses.clear()
        with pytest.raises(LinkBroken) as caught:
            await broker.client.connect(f"local://{rundir}/nobody", retries=retries)
        return caught.value.errno

    monkeypatch.setattr("broker.client.dialing.asyncio.sleep", sleep)
    assert asyncio.run(main(None)) == errno.ENOENT
    assert pauses == [0.016, 0.032, 0.064, 0.128, 0.256]
    monkeypatch.setenv("FLUX_LOCAL_CONNECTOR_RETRY_COUNT", "2")
    asyncio.run(main(None))
    assert pauses == [0.016, 0.032]
    asyncio.run(main(0))
    assert pauses == []
    monkeypatch.setenv("FLUX_LOCAL_CONNECTOR_RETRY_COUNT", "-1")
    with pytest.raises(ConfigError, match="FLUX_LOCAL_CONNECTOR_RETRY_COUNT='-1'"):
        asyncio.run(main(None))


def test_broker_that_starts_meanwhile_is_found(rundir):
    uri = f"local://{rundir}/late"

    async def main():
        async def connected():
            async with broker.client.connect(uri, retries=9) as h:
                return await h.size()

        task = soon(connected())
        await asyncio.sleep(0.02)
        _broker, listener = await tiny_broker.start(uri)
        assert await task == 4
        await listener.stop()

    asyncio.run(main())


def test_a_transport_that_waited_itself_is_not_asked_again(monkeypatch):
    attempts = []

    async def slow(uri, options):
        attempts.append(uri)
        raise LinkBroken("nobody answered", errno.ECONNREFUSED)

    async def main():
        with pytest.raises(LinkBroken):
            await broker.client.connect("tcp://127.0.0.1:1")

    monkeypatch.setattr("broker.client.dialing.dial", slow)
    monkeypatch.setattr("broker.client.dialing.FIRST_PAUSE_S", 0.0)
    asyncio.run(main())
    assert len(attempts) == 6
    attempts.clear()
    monkeypatch.setattr("broker.client.dialing.PATIENT_S", -1.0)
    asyncio.run(main())
    assert len(attempts) == 1


def test_refusal_is_believed_at_once(rundir):
    uri = f"local://{rundir}/s"
    asked = []

    async def main():
        _broker, listener = await tiny_broker.start(uri, lambda peer: asked.append(peer.uid) or errno.EPERM)
        with pytest.raises(LinkRefused) as caught:
            await broker.client.connect(uri)
        assert caught.value.errno == errno.EPERM
        await listener.stop()

    asyncio.run(main())
    assert asked == [os.getuid()]


def test_address_nobody_understands():
    async def main(uri):
        with pytest.raises(ConfigError):
            await broker.client.connect(uri)

    for uri in ("carrier-pigeon://roof", "/no/scheme", "local://relative"):
        asyncio.run(main(uri))


def test_public_names_and_a_light_import():
    assert set(broker.client.__all__) <= set(dir(broker.client))
    code = (
        "import sys, broker.client; "
        "print([m for m in ('typer', 'rich', 'zmq', 'aiohttp', 'cryptography') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
