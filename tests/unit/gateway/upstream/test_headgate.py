"""The upstream before a whole broker of ours in this process, through a real socket."""

import asyncio
import contextlib
import errno
import shutil
import tempfile
from pathlib import Path

import broker.client
from broker import settings as broker_settings
from broker.client import LATER
from broker.node.assembly import Node
from broker.transport.link import Options
from broker.transport.outbox import WINDOW_MSGS
from broker.wire import message as wire
from broker.wire.payload import encode_json
from gateway.upstream.upstream import Upstream
from tests.unit.gateway.upstream.recorder import Recorder, hop, session_request, until

BLOCK = b"x" * 200_000


@contextlib.asynccontextmanager
async def before_headgate():
    """(node, centre, upstream), joined."""
    rundir = Path(tempfile.mkdtemp(prefix="hg-"))
    uri = f"local://{rundir}/s"
    node = Node(broker_settings.loads(f'[broker]\nrundir = "{rundir}/r"\nlocal_uri = "{uri}"\n').at_rank(0))
    centre = Recorder()
    upstream = Upstream(uri, Options(), rejoin_max_s=0.1)
    try:
        await node.start()
        await upstream.start(centre)
        assert await upstream.wait_joined(10), upstream.reason
        yield node, centre, upstream
    finally:
        await upstream.stop()
        await node.stop()
        shutil.rmtree(rundir)


def run(script):
    async def main():
        async with asyncio.timeout(30), before_headgate() as (node, centre, upstream):
            await script(node, centre, upstream)

    asyncio.run(main())


def ports(node, link_of_gateway=True):
    """Ports of clients that provide the gateway's service, or of those that do not."""
    return [
        port
        for port in node.broker.router.ports
        if port.link is not None and any("gateway-" in str(name) for name in port.services) is link_of_gateway
    ]


def follow_log(who):
    """An owner's session that follows the log."""
    payload = encode_json({"follow": True, "nobacklog": True})
    return session_request(who, "log.dmesg", payload, matchtag=1, flags=wire.STREAMING, userid=0, rolemask=1)


def test_it_is_known_for_what_it_is():
    async def script(node, centre, upstream):
        assert (upstream.headgate, upstream.rank, upstream.size) == (True, 0, 1)
        assert upstream.epoch == node.broker.router.uuid == centre.history.epoch

    run(script)


def test_events_of_others_come_in_order_with_their_numbers():
    async def script(node, centre, upstream):
        async with broker.client.connect(upstream.uri) as h:
            numbers = [await h.publish("t.x", {"n": n}) for n in range(20)]
        await until(lambda: centre.history.last == numbers[-1], "the events")
        assert [m.sequence for m in centre.events if m.topic == "t.x"] == numbers
        assert centre.history.covers(upstream.epoch, numbers[0] - 1)

    run(script)


def test_sessions_are_stamped_as_the_gateway_says_and_told_apart():
    async def script(node, centre, upstream):
        ping = encode_json({"seq": 1})
        for name, userid, rolemask in (("a", 1001, 2), ("b", 1002, 8 | 2)):
            upstream.send(
                session_request(hop(name), "broker.ping", ping, matchtag=1, userid=userid, rolemask=rolemask)
            )
        await until(lambda: len(centre.answers) == 2, "both answers")
        for answer, name, stamp in zip(centre.answers, "ab", ((1001, 2), (1002, 10)), strict=True):
            pong = broker.client.Response(answer).json()
            assert (pong["userid"], pong["rolemask"]) == stamp
            assert answer.front == hop(name) + wire.DELIMITER

    run(script)


def test_a_session_s_notice_ends_its_stream_only():
    async def script(node, centre, upstream):
        for name in "ab":
            upstream.send(follow_log(hop(name)))
        upstream.send(
            session_request(hop("a"), "log.disconnect", flags=wire.NORESPONSE, userid=0, rolemask=1)
        )
        await upstream.handle.rpc("broker.ping", {"seq": 1})
        centre.answers.clear()
        await upstream.handle.log("info", "after")
        await until(lambda: any(b"after" in (m.payload or b"") for m in centre.answers), "the line")
        assert {m.front for m in centre.answers} == {hop("b") + wire.DELIMITER}

    run(script)


def test_the_gateway_s_link_is_never_paused():
    """Behind it are many sessions: one provider that does not read must not stop them all (``node/pressure.py``)."""

    async def script(node, centre, upstream):
        async with (
            broker.client.connect(upstream.uri) as provider,
            broker.client.connect(upstream.uri) as caller,
            provider.service("deaf", {"take": (lambda request: LATER, 2)}),
        ):
            provider.link.pause()
            for _ in range(40):  # of a session: beyond high water of the provider's outbox
                upstream.send(session_request(hop("a"), "deaf.take", BLOCK, matchtag=1))
            await until(lambda: any(m.errnum == errno.EAGAIN for m in centre.answers), "EAGAIN")
            assert all("does not keep up" in broker.client.Response(m).text for m in centre.answers)
            caller.send(wire.request("deaf.take", BLOCK))
            pressure = node.broker.pressure
            (gateway,) = ports(node)
            await until(lambda: any(pressure.is_paused(port) for port in ports(node, False)), "a pause")
            assert not pressure.is_paused(gateway)
            upstream.send(session_request(hop("b"), "broker.ping", encode_json({"seq": 1}), matchtag=2))
            await until(lambda: any(m.matchtag == 2 for m in centre.answers), "the other session's answer")
            provider.link.resume()

    run(script)


def test_a_slow_broker_is_told_and_its_recovery_too():
    async def script(node, centre, upstream):
        (gateway,) = ports(node)
        gateway.link.pause()
        while not upstream.choked:
            upstream.send(session_request(hop("a"), "broker.ping", BLOCK, flags=wire.NORESPONSE))
            upstream.handle.link.flusher.flush()
        gateway.link.resume()
        await until(lambda: not upstream.choked, "the recovery")
        assert [entry for entry in centre.told if entry[0] == "choked"] == [
            ("choked", True),
            ("choked", False),
        ]

    run(script)


def test_a_broker_of_ours_has_little_under_way_to_it():
    """It says what it has handled: sessions are told to wait long before any buffer is full."""

    async def script(node, centre, upstream):
        (gateway,) = ports(node)
        await until(lambda: gateway.window is not None, "the wish to be told")
        gateway.link.pause()
        sent = 0
        while not upstream.choked and sent < 10 * WINDOW_MSGS:
            sent += 1
            upstream.send(session_request(hop("a"), "broker.ping", encode_json({"seq": 1}), matchtag=sent))
            upstream.handle.link.flusher.flush()
        assert sent in (WINDOW_MSGS, WINDOW_MSGS + 1)  # what was said to begin with may be under way, too
        gateway.link.resume()
        await until(lambda: len(centre.answers) == sent, "all answers")
        assert not upstream.choked

    run(script)


def test_with_the_link_the_streams_of_all_its_sessions_end():
    """Without a notice of any of them: the broker keys by sender, so one link does for all."""

    async def script(node, centre, upstream):
        for name in "ab":
            upstream.send(follow_log(hop(name)))
        await upstream.handle.rpc("broker.ping", {"seq": 1})
        await upstream.stop()
        await until(lambda: not ports(node), "the end")
        drops = dict(node.broker.router.counters.drops)
        async with broker.client.connect(upstream.uri) as h:
            await h.log("info", "nobody follows")
            await h.rpc("broker.ping", {"seq": 1})
        assert node.broker.router.counters.drops == drops

    run(script)
