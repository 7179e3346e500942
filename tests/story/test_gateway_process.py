"""A gateway as a process: it says where it is, reloads, loses its broker and finds it again, drains and leaves."""

import asyncio
import contextlib
import signal
import socket
import ssl
import time

import aiohttp
import pytest

from gateway import selfsigned
from tests.live.brokers import BrokerProcess, eventually, one_config
from tests.live.gateways import GatewayProcess, config_in, gateway_process

pytestmark = pytest.mark.story
JSON = ("flux.v1.json",)


def going(work, timeout=40.0):
    async def bounded():
        async with asyncio.timeout(timeout):
            await work()

    asyncio.run(bounded())


async def until(http, url, status, timeout=15.0):
    """Wait until ``url`` answers with ``status``."""
    async with asyncio.timeout(timeout):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(url) as answer:
                    if answer.status == status:
                        return await answer.json()
            await asyncio.sleep(0.05)


def test_it_says_where_it_is_and_that_it_is_ready(rundir, broker):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(rundir / "notify"))
        manager.settimeout(20)
        running = GatewayProcess(config_in(rundir, broker.uri), env={"NOTIFY_SOCKET": str(rundir / "notify")})
        try:
            running.wait_ready()
            assert manager.recv(100) == b"READY=1"
            assert running.stop() == 0
            assert manager.recv(100).split(b"\n")[0] == b"STOPPING=1"
        finally:
            running.kill()


@pytest.mark.patient
def test_clients_are_told_and_closed_one_after_the_other(rundir, broker):
    async def work():
        async with contextlib.AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession())
            sockets = []
            for _ in range(4):
                opened = http.ws_connect(running.ws, protocols=JSON, headers=running.bearer())
                sockets.append(await stack.enter_async_context(opened))
                assert (await sockets[-1].receive_json())["type"] == "welcome"
            events = await stack.enter_async_context(
                http.get(f"{running.urls[0]}/v1/events", headers=running.bearer())
            )
            running.signal(signal.SIGTERM)
            closed = []
            for each in sockets:
                said = [await each.receive_json(), await each.receive_json()]
                assert said[0] == {"type": "shutdown", "in_s": 0.5}
                assert (said[1]["type"], said[1]["code"], said[1]["reconnect"]) == ("error", 4000, True)
                assert (await each.receive()).type is aiohttp.WSMsgType.CLOSE
                closed.append(each.close_code)
            assert closed == [4000] * 4
            told = await events.content.read()
            assert b"event: shutdown" in told
            assert b'"code":4000' in told
            with pytest.raises(aiohttp.ClientConnectorError):
                await http.get(f"{running.urls[0]}/livez")

    with gateway_process(rundir, broker.uri) as running:
        going(work)
        assert running.process.wait(10) == 0


@pytest.mark.patient
def test_a_second_signal_ends_it_at_once(rundir, broker):
    async def work():
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(running.ws, protocols=JSON, headers=running.bearer()) as first,
            http.ws_connect(running.ws, protocols=JSON, headers=running.bearer()) as second,
        ):
            await first.receive_json()
            await second.receive_json()
            running.signal(signal.SIGTERM)
            assert (await second.receive_json())["type"] == "shutdown"
            running.signal(signal.SIGTERM)
            await asyncio.to_thread(running.process.wait, 10)

    config = config_in(rundir, broker.uri)
    config.write_text(config.read_text().replace("drain_s = 0.5", "drain_s = 60.0"))
    running = GatewayProcess(config)
    try:
        running.wait_ready()
        going(work)  # within its deadline, which is less than the time for the drain
    finally:
        running.kill()


@pytest.mark.patient
def test_the_broker_ends_and_comes_back(rundir):
    broker = BrokerProcess(one_config(rundir), 0, f"local://{rundir}/local-0")
    broker.wait_ready()

    async def work():
        url = running.urls[0]
        async with aiohttp.ClientSession() as http:
            await until(http, f"{url}/readyz", 200)
            async with http.ws_connect(running.ws, protocols=JSON, headers=running.bearer()) as client:
                epoch = (await client.receive_json())["epoch"]
                broker.kill()
                lost = await client.receive_json()
                assert (lost["type"], lost["joined"]) == ("upstream", False)
                said = await until(http, f"{url}/readyz", 503)
                assert said["reason"]
                async with http.get(f"{url}/livez") as answer:
                    assert answer.status == 200
                broker.start()
                back = await client.receive_json()
                assert (back["type"], back["joined"], back["epoch"] != epoch) == ("upstream", True, True)
                await until(http, f"{url}/readyz", 200)
                async with http.post(
                    f"{url}/v1/rpc/attr.get", json={"name": "rank"}, headers=running.bearer()
                ) as answer:
                    assert (await answer.json())["value"] == "0"

    try:
        with gateway_process(rundir, broker.uri) as running:
            going(work)
    finally:
        broker.kill()


@pytest.mark.patient
def test_it_starts_without_a_broker_and_is_ready_when_there_is_one(rundir):
    async def work():
        async with aiohttp.ClientSession() as http:
            await until(http, f"{running.urls[0]}/readyz", 503)
            late.append(BrokerProcess(one_config(rundir), 0, f"local://{rundir}/local-0"))
            await until(http, f"{running.urls[0]}/readyz", 200)

    late = []
    try:
        with gateway_process(rundir, f"local://{rundir}/local-0") as running:
            going(work)
    finally:
        for each in late:
            each.kill()


def shown(url):
    """The certificate that a fresh connection is shown."""
    host, port = url.removeprefix("https://").split(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port))) as raw, context.wrap_socket(raw) as secured:
        return secured.getpeercert(binary_form=True)


def test_certificates_are_replaced_and_bad_ones_are_not(rundir, broker):
    def renew():
        selfsigned.save(selfsigned.make(["127.0.0.1"], now=time.time()), rundir, replace=True)

    renew()
    listen = '[[listen]]\nurl = "https://127.0.0.1:0"\ncert = "cert.pem"\nkey = "key.pem"\n'
    with gateway_process(rundir, broker.uri, listen) as running:
        url = running.urls[0]
        first = shown(url)
        renew()
        assert shown(url) == first
        running.signal(signal.SIGHUP)
        eventually(lambda: shown(url) != first)
        second = shown(url)
        (rundir / "cert.pem").write_text("no certificate")
        running.signal(signal.SIGHUP)
        eventually(
            lambda: any("cert.pem" in line and "what was there stays" in line for line in running.lines())
        )
        assert shown(url) == second
        assert running.stop() == 0


@pytest.mark.patient
def test_sighup_reads_users_and_rules_again(rundir, broker):
    async def work():
        async with aiohttp.ClientSession() as http:
            url = f"{running.urls[0]}/v1/rpc/attr.get"

            async def status():
                async with http.post(url, json={"name": "rank"}, headers=running.bearer("bob")) as answer:
                    return answer.status

            assert await status() == 200
            whole = config.read_text()
            config.write_text(f"{whole}[[users]]\nname = 7\n")
            running.signal(signal.SIGHUP)
            await asyncio.to_thread(eventually, lambda: any("name" in line for line in running.lines()))
            assert await status() == 200
            config.write_text(whole.replace('"secret."', '"attr."'))
            running.signal(signal.SIGHUP)
            async with asyncio.timeout(20):
                while await status() != 403:
                    pass

    config = config_in(rundir, broker.uri)
    running = GatewayProcess(config)
    try:
        running.wait_ready()
        going(work)
        assert running.stop() == 0
    finally:
        running.kill()
