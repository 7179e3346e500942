"""Each alert rule that is shipped fires when what it is about happens to a live program of ours, and not before."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import aiohttp
import pytest
import zmq

from broker.exposition import render
from broker.oslo.frames import Kind, encode, new_id
from broker.oslo.service import metrics as oslo
from broker.wire.message import RESPONSE, event, request, response
from gateway import selfsigned
from tests.live.brokers import BrokerProcess, eventually, one_broker, tree_config
from tests.live.gateways import gateway_process, live, run
from tests.live.ports import free_port
from tests.live.promql import evaluate, scraped
from tests.live.rawweb import Web
from tests.live.scrapes import RULES, Prometheus, page
from tests.live.speaker import Speaker, provide, subscribe
from tests.unit.cli.test_oslo_processes import proxy as oslo_proxy

pytestmark = [pytest.mark.story, pytest.mark.timeout(120)]

MANY = 1 << 20


def test_every_rule_is_provoked_here():
    text = Path(__file__).read_text()
    assert [alert for alert in RULES if f'"{alert}"' not in text] == []


def listening(rundir, name="m"):
    return f'metrics_listen = "unix://{rundir}/{name}"\n'


@contextlib.contextmanager
def watched_broker(rundir, extra=""):
    """A broker, and who scrapes it; scraped once."""
    with one_broker(rundir, f"[broker]\n{listening(rundir)}{extra}") as broker:
        prometheus = Prometheus(rundir / "m", "headgate-broker")
        prometheus.scrape()
        yield broker, prometheus


def quiet(prometheus, *alerts):
    for alert in alerts:
        assert not prometheus.fires(alert)


# -- brokers --------------------------------------------------------------------------------------


def test_a_broker_that_is_gone(rundir):
    with watched_broker(rundir) as (broker, prometheus):
        quiet(prometheus, "HeadgateBrokerAway", "HeadgateBrokerNotJoined")
        broker.stop()
        assert prometheus.fired("HeadgateBrokerAway")


def test_readers_that_do_not_read(rundir):
    """Subscribers hold references to the same events, so the broker itself needs little memory for it."""
    with (
        watched_broker(rundir, '[limits]\nevent_policy = "drop"\n') as (broker, prometheus),
        contextlib.ExitStack() as stack,
        Speaker(broker.uri) as mouth,
    ):
        quiet(prometheus, "HeadgateReadersSlow")
        for _ in range(20):
            subscribe(stack.enter_context(Speaker(broker.uri)), "big.")
        for _ in range(20):
            mouth.tell(event("big.x", bytes(MANY)))
            mouth.ask(request("broker.ping", b'{"seq":1}\0', matchtag=2))
        assert prometheus.fired("HeadgateReadersSlow")


@pytest.mark.patient
def test_calls_that_nobody_answers(rundir):
    with (
        watched_broker(rundir, "[limits]\nbatch_msgs = 4096\n") as (broker, prometheus),
        contextlib.ExitStack() as stack,
        Speaker(broker.uri) as mute,
    ):
        quiet(prometheus, "HeadgateCallsPileUp")
        provide(mute, "mute")
        for _ in range(101):
            caller = stack.enter_context(Speaker(broker.uri))
            caller.tell(*(request("mute.x", matchtag=tag + 1) for tag in range(1000)))
            for _ in range(1000):
                mute.next()
        assert prometheus.fired("HeadgateCallsPileUp")


def test_calls_that_fail(rundir):
    with watched_broker(rundir) as (broker, _), Speaker(broker.uri) as bad, Speaker(broker.uri) as caller:
        provide(bad, "bad")

        def call(errnum):
            caller.tell(request("bad.run", matchtag=1))
            bad.tell(response(bad.take(lambda seen: seen.topic == "bad.run"), errnum=errnum))
            caller.take(lambda seen: seen.type == RESPONSE)

        call(5)
        prometheus = Prometheus(rundir / "m", "headgate-broker")
        prometheus.scrape()
        call(5)
        assert not prometheus.fired("HeadgateCallsFail"), "the only one of an hour need not wake anybody"
        for errnum in (*[0] * 40, 5):
            call(errnum)
        assert not prometheus.fired("HeadgateCallsFail")
        assert prometheus.value("headgate_calls_total", method="bad.run") == 43
        assert prometheus.value("headgate_call_seconds_count", method="bad.run") == 43
        assert prometheus.value("headgate_call_errors_total", method="bad.run", errno="EIO") == 3
        for _ in range(10):
            call(5)
        assert prometheus.fired("HeadgateCallsFail")


def test_messages_that_go_nowhere(rundir):
    with watched_broker(rundir) as (broker, _), Speaker(broker.uri) as liar:
        answer = response(request("nobody.asked", matchtag=3))
        liar.tell(answer)
        liar.ask(request("broker.ping", b'{"seq":1}\0', matchtag=2))
        prometheus = Prometheus(rundir / "m", "headgate-broker")
        prometheus.scrape()
        quiet(prometheus, "HeadgateDropsMessages")
        liar.tell(*[answer] * 3100)
        liar.ask(request("broker.ping", b'{"seq":1}\0', matchtag=2))
        assert prometheus.fired("HeadgateDropsMessages")


@pytest.mark.patient
def test_a_broker_without_its_parent_and_the_events_it_missed(rundir):
    """The parent ends and comes back while the rank below is frozen; what is published meanwhile it never sees."""
    configs = []
    for rank in range(2):
        place = rundir / str(rank)
        place.mkdir()
        addresses = [f"ipc://{rundir}/tree-{each}" for each in range(2)]
        configs.append(tree_config(place, addresses, f"[broker]\n{listening(rundir, f'm{rank}')}"))
    uris = [f"local://{rundir}/{rank}/local-{rank}" for rank in range(2)]
    ranks = [BrokerProcess(configs[0], 0, uris[0])]
    try:
        ranks[0].wait_ready()
        prometheus = Prometheus(rundir / "m0", "headgate-broker")
        prometheus.scrape()
        assert prometheus.fires("HeadgateBrokerNotJoined"), "it waits for rank 1"
        ranks.append(BrokerProcess(configs[1], 1, uris[1]))
        ranks[1].wait_ready()
        eventually(lambda: prometheus.fired("HeadgateBrokerNotJoined"), False)
        prometheus = Prometheus(rundir / "m1", "headgate-broker")
        prometheus.scrape()
        quiet(prometheus, "HeadgateBrokerNotJoined", "HeadgateEventsMissed")
        ranks[1].signal(signal.SIGSTOP)
        ranks[0].kill()
        ranks[0].start()
        ranks[0].wait_ready()
        publish(uris[0], 5)
        ranks[1].signal(signal.SIGCONT)
        eventually(lambda: publish(uris[0], 1) or prometheus.fired("HeadgateEventsMissed"), timeout=30)
    finally:
        for rank in ranks:
            rank.signal(signal.SIGCONT)
            rank.kill()


def publish(uri, count, size=0):
    with Speaker(uri) as mouth:
        for number in range(count):
            mouth.tell(event("news.x", bytes(size)))
            mouth.ask(request("broker.ping", b'{"seq":1}\0', matchtag=number + 1))


def test_a_journal_that_is_off_and_one_that_does_not_keep_up(rundir):
    journal = f'[journal]\nenabled = true\ndirectory = "{rundir}/j"\nqueue_bytes = 65536\n'
    with watched_broker(rundir, journal) as (broker, prometheus), Speaker(broker.uri) as owner:
        quiet(prometheus, "HeadgateJournalOff", "HeadgateJournalSheds")
        (writer,) = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
        os.kill(int(writer), signal.SIGSTOP)
        eventually(lambda: publish(broker.uri, 64, MANY // 32) or prometheus.fired("HeadgateJournalSheds"))
        os.kill(int(writer), signal.SIGCONT)
        assert owner.ask(request("journal.stop", matchtag=1)).errnum == 0
        assert prometheus.fired("HeadgateJournalOff")


# -- gateways -------------------------------------------------------------------------------------


@contextlib.contextmanager
def watched_gateway(rundir, extra=""):
    """A broker with a gateway in front of it, and who scrapes that; scraped once."""
    with (
        one_broker(rundir) as broker,
        gateway_process(rundir, broker.uri, listening(rundir, "g") + extra) as gateway,
    ):
        prometheus = Prometheus(rundir / "g", "headgate-gateway")
        prometheus.scrape()
        yield broker, gateway, prometheus


def test_a_gateway_whose_broker_is_gone_and_one_that_is_gone_itself(rundir):
    with watched_gateway(rundir) as (broker, gateway, prometheus):
        quiet(prometheus, "HeadgateGatewayWithoutBroker", "HeadgateGatewayAway")
        broker.stop()
        eventually(lambda: prometheus.fired("HeadgateGatewayWithoutBroker"))
        gateway.stop()
        assert prometheus.fired("HeadgateGatewayAway")


def test_a_fault_of_the_gateway():
    async def script(folder):
        async with live(folder, f"[gateway]\n{listening(folder, 'g')}") as running:
            sessions = running.gateway.sessions
            prometheus = Prometheus(folder / "g", "headgate-gateway")
            await asyncio.to_thread(prometheus.scrape)
            quiet(prometheus, "HeadgateGatewayFaults")
            rules, sessions.access = sessions.access, None
            async with aiohttp.ClientSession() as browser:
                asked = browser.post(
                    f"{running.url}/v1/rpc/broker.ping", json={}, headers=running.bearer("bob")
                )
                assert (await asked).status == 503
            sessions.access = rules
            assert await asyncio.to_thread(prometheus.fired, "HeadgateGatewayFaults")

    run(script)


@pytest.mark.patient
def test_credentials_that_are_refused(rundir):
    with watched_gateway(rundir) as (_, gateway, prometheus):
        quiet(prometheus, "HeadgateCredentialsRefused")
        web = Web(gateway, rundir)
        for _ in range(310):
            assert web.ask("GET", "/v1/session", {"Authorization": "Bearer nonsense"}).status == 401
        assert prometheus.fired("HeadgateCredentialsRefused")


def test_an_authorisation_hook_that_is_away():
    alert = "HeadgateAuthorizationHookFails"
    hook = f'[access]\nhook_url = "http://127.0.0.1:{free_port()}/allow"\n'

    async def script(folder):
        async with live(folder, f"[gateway]\n{listening(folder, 'g')}{hook}") as running:
            prometheus = Prometheus(folder / "g", "headgate-gateway")
            await asyncio.to_thread(prometheus.scrape)
            quiet(prometheus, alert)
            async with aiohttp.ClientSession() as browser:
                asked = browser.post(
                    f"{running.url}/v1/rpc/broker.ping", json={}, headers=running.bearer("bob")
                )
                assert (await asked).status == 503
            assert await asyncio.to_thread(prometheus.fired, alert)

    run(script)


@pytest.mark.patient
def test_a_fleet_whose_redis_is_away():
    alert = "HeadgateFleetAway"

    async def script(folder):
        gateway = f'[gateway]\n{listening(folder, "g")}redis = "redis://127.0.0.1:{free_port()}"\n'
        async with live(folder, gateway):
            prometheus = Prometheus(folder / "g", "headgate-gateway")
            await asyncio.to_thread(prometheus.scrape)
            assert await asyncio.to_thread(prometheus.fired, alert)

    run(script)


@contextlib.contextmanager
def deaf(gateway, count, policy):
    """So many event streams of people who stop reading once they have been welcomed."""
    host, _, port = gateway.urls[0].removeprefix("http://").rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(20)
            sock.connect((host, int(port)))
            sock.sendall(
                f"GET /v1/events?prefix=news.&overflow={policy} HTTP/1.1\r\nHost: {host}\r\n"
                f"Authorization: Bearer {gateway.tokens['bob']}\r\n\r\n".encode()
            )
            said = b""
            while b"event: welcome" not in said:
                said += sock.recv(4096)
        yield


SLOW = "[limits]\noutbox_bytes = 65536\n"


@pytest.mark.patient
@pytest.mark.parametrize(
    ("alert", "policy"),
    [("HeadgateWebClientsSlow", "disconnect"), ("HeadgateWebClientsMissEvents", "drop")],
)
def test_web_clients_that_do_not_read(rundir, alert, policy):
    with watched_gateway(rundir, SLOW) as (broker, gateway, prometheus):
        quiet(prometheus, alert)
        with deaf(gateway, 21, policy):
            eventually(lambda: publish(broker.uri, 100, MANY // 16) or prometheus.fired(alert), timeout=60)
        if policy == "drop":
            before = prometheus.value("headgate_gateway_events_dropped_total")
            eventually(lambda: prometheus.fired(alert) and gone(prometheus))
            assert prometheus.value("headgate_gateway_events_dropped_total") >= before, (
                "also when they are gone"
            )


def gone(prometheus):
    return prometheus.value("headgate_gateway_sessions", kind="sse") == 0


@pytest.mark.patient
def test_a_certificate_that_ends_soon(rundir):
    listen = '[[listen]]\nurl = "https://127.0.0.1:0"\ncert = "cert.pem"\nkey = "key.pem"\n'
    for days, fires in ((30, False), (13, True)):
        made = selfsigned.make(["127.0.0.1"], days=days, now=time.time())
        selfsigned.save(made, rundir, replace=True)
        with watched_gateway(rundir, listen) as (_, _, prometheus):
            assert prometheus.fires("HeadgateCertificateEnds") is fires


# -- node proxies of oslo.messaging ------------------------------------------------------------------

JOB = "headgate-oslo"


@contextlib.contextmanager
def watched_proxy(rundir, settings="", *words):
    """``headgate oslo proxy`` with its figures scraped once."""
    file = rundir / "oslo.toml"
    file.write_text(f'[oslo]\nmetrics_listen = "unix://{rundir}/m"\n{settings}')
    with oslo_proxy(rundir, "--config", str(file), *words) as (process, _said):
        prometheus = Prometheus(rundir / "m", JOB)
        prometheus.scrape()
        yield process, prometheus


def test_a_proxy_that_is_gone_and_one_that_keeps_its_former_rules(rundir):
    with watched_proxy(rundir) as (process, prometheus):
        quiet(prometheus, "HeadgateOsloProxyAway", "HeadgateOsloRoomSilent", "HeadgateOsloReloadRefused")
        (rundir / "oslo.toml").write_text("not TOML")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: prometheus.fired("HeadgateOsloReloadRefused"))
        process.kill()
        process.wait()
        assert prometheus.fired("HeadgateOsloProxyAway")


@pytest.mark.patient
def test_a_room_that_hangs_and_a_directory_that_is_alone(rundir):
    settings = 'directories = ["tcp://127.0.0.1:1"]\n'
    with (
        oslo_proxy(rundir, "--run", "call", log="call.log") as (call, _said),
        watched_proxy(rundir, settings, "--run", "directory,cast,fanout,notify") as (_process, prometheus),
    ):
        quiet(prometheus, "HeadgateOsloRoomSilent")
        assert prometheus.fires("HeadgateOsloDirectoryAlone")
        os.kill(call.pid, signal.SIGSTOP)
        try:
            assert prometheus.fired("HeadgateOsloRoomSilent")
        finally:
            os.kill(call.pid, signal.SIGCONT)


def test_messages_that_a_proxy_refuses_or_drops(rundir):
    def send(number):
        """And wait until that many more have been counted, in all."""
        with zmq.Context() as context:
            for room, kind, each in (("call", zmq.DEALER, Kind.CALL), ("cast", zmq.PUSH, Kind.CAST)):
                with context.socket(kind) as sock:
                    sock.connect(f"ipc://{rundir}/ipc/{room}.in")
                    for _ in range(number):
                        sock.send_multipart([encode(each, "x", "nobody", id=new_id()), b""])
                    sock.close(1000)
        sent.append(number)
        counted = f'_total{{pipeline="%s",reason="no_route"}} {sum(sent)}\n'
        eventually(lambda: counted % "call" in page(rundir / "m") and counted % "cast" in page(rundir / "m"))

    sent = []
    with watched_proxy(rundir) as (_process, prometheus):
        send(1)  # what was not there at the first of two scrapes has no rate
        prometheus.scrape()
        quiet(prometheus, "HeadgateOsloDrops", "HeadgateOsloRefuses")
        send(400)
        prometheus.scrape()
        assert prometheus.fires("HeadgateOsloDrops")
        assert prometheus.fires("HeadgateOsloRefuses")


@pytest.mark.parametrize(
    ("alert", "before", "after"),
    [
        (
            "HeadgateOsloSendersWait",
            {"back_pressure": {"paused": False}},
            {"back_pressure": {"paused": True}},
        ),
        ("HeadgateOsloSlowConsumers", {"counts": {"subscribers_cut": 0}}, {"counts": {"subscribers_cut": 1}}),
        ("HeadgateOsloTurnsAway", {"connections_denied": 1}, {"connections_denied": 12}),
    ],
)
def test_what_a_room_says_that_takes_long_to_provoke(alert, before, after):
    """Rooms are shown to say so by their own tests."""
    scrapes = [
        scraped(render(oslo.samples({"fanout": said})), at_s, job=JOB, instance="n")
        for at_s, said in ((0.0, before), (60.0, after))
    ]
    assert not evaluate(RULES[alert], scrapes[:1])
    assert evaluate(RULES[alert], scrapes)
