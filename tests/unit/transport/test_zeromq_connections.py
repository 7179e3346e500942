"""Connections of ROUTER and DEALER come and go: killed, frozen, paused, cancelled, failing, closed with data left."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

from broker.errors import LinkBroken, LinkClosed, LinkEnded
from broker.testing.harness import PATIENCE_S, Accepting, Recorder, numbered, send_all, topics
from broker.transport import curve, dialing, handshaking, zeromq
from broker.transport.dialing import PROBING
from broker.transport.link import Link, Options
from broker.wire.message import Message, control, event
from tests.unit.transport.raw import (
    CLIENT,
    PEER,
    SERVER,
    came,
    dialling,
    listener,
    listening,
    raw,
)


def test_an_identity_used_again_is_another_link():
    """A peer that takes over a dead peer's identity gets a link with its own key, and the dead one's ends first."""

    async def check():
        async with listener(listening()) as (address, accepting):
            with zmq.Context() as context, contextlib.ExitStack() as stack:
                with raw(zmq.DEALER, context, PEER) as first:
                    first.connect(address)
                    first.send_multipart(event("first").parts())
                    await (await accepting.link(0))[1].count(1)
                for _ in range(10):
                    known = len(accepting.links)  # one more where a try came after we had given it up
                    second = stack.enter_context(raw(zmq.DEALER, context, CLIENT))
                    second.connect(address)
                    second.send_multipart(event("second").parts())
                    # libzmq ignores an identity whose connection it still holds: who comes too early tries again
                    if await came(accepting, known):
                        break
                    second.close()
                link, recorder = await accepting.link(known)
                assert topics(await recorder.count(1)) == ["second"]
                assert link.peer.key == CLIENT.public_key
                assert isinstance(await accepting.links[0][1].end(), LinkEnded)
                assert topics(accepting.links[0][1].messages) == ["first"]
                assert link.ended is None

    asyncio.run(check())


def test_a_message_of_a_connection_that_is_gone_still_counts():
    """Last words that are read only after the connection was lost are delivered, then the link ends."""

    async def check():
        async with listener(listening()) as (address, accepting):
            with zmq.Context() as context:
                with raw(zmq.DEALER, context) as child:
                    with child.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED) as told:
                        child.connect(address)
                        assert await asyncio.to_thread(told.poll, int(PATIENCE_S * 1000))
                        child.disable_monitor()
                    # from here on our loop stands still
                    child.send_multipart(event("only.words").parts())
                    child.close(linger=2000)
                context.term()
                time.sleep(0.1)  # noqa: ASYNC251 - that is the point
                link, recorder = await accepting.link(0)
                assert isinstance(await recorder.end(), LinkEnded)
                assert topics(recorder.messages) == ["only.words"]
                send_all(link, [event("too.late")])

    asyncio.run(check())


CHILD = """
import asyncio, sys
from broker.transport import curve, dialing, handshaking, zeromq
from broker.transport.link import Options
from broker.wire.message import control

async def main():
    certificate = curve.load(sys.argv[2])
    client = curve.CurveClient(certificate, sys.argv[3])
    link = await zeromq.transport.dial(sys.argv[1], Options(extra={"curve": client}))
    class Receiver:
        def received(self, link, messages): pass
        def link_ended(self, link, error): pass
        def link_choked(self, link, choked): pass
    link.start(Receiver())
    link.send(control(0))
    await asyncio.sleep(60)

asyncio.run(main())
"""


def start_child(address: str, certificate: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", CHILD, address, str(certificate), SERVER.public_key]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def test_a_killed_peer_is_noticed_by_the_kernel_not_by_silence(rundir: Path):
    async def check():
        curve.save(PEER, rundir / "cert")
        async with listener(listening()) as (address, accepting):
            with start_child(address, rundir / "cert") as child:
                link, recorder = await accepting.link(0)
                child.send_signal(signal.SIGKILL)
                child.wait()
                assert isinstance(await recorder.end(), LinkEnded)
                send_all(link, [event("nobody")])

    asyncio.run(check())


@pytest.mark.patient
def test_a_frozen_peer_is_no_matter_of_the_link_until_it_takes_nothing_any_more(rundir: Path, monkeypatch):
    """Its kernel goes on. Who needs to know counts silence (``node.overlay``); who sends on and on learns of it."""
    monkeypatch.setattr(handshaking.HandshakeListener, "probing", PROBING._replace(unconfirmed_ms=500))

    async def check():
        curve.save(PEER, rundir / "cert")
        async with listener(listening()) as (address, accepting):
            with start_child(address, rundir / "cert") as child:
                link, recorder = await accepting.link(0)
                child.send_signal(signal.SIGSTOP)
                await asyncio.sleep(1)
                assert not recorder.ends
                send_all(link, numbered(200, 100_000))
                assert isinstance(await recorder.end(), LinkEnded | LinkBroken)
                child.kill()

    asyncio.run(check())


def test_dialling_waits_for_a_listener_to_come(rundir: Path):
    async def check():
        made: list[Link] = []

        async def dial() -> None:
            made.append(
                await zeromq.transport.dial(f"ipc://{rundir}/late", Options(connect_timeout_s=PATIENCE_S))
            )

        async with asyncio.TaskGroup() as group:
            group.create_task(dial(), name="dial")
            await asyncio.sleep(0.1)
            assert not made
            accepting = Accepting()
            late = await zeromq.transport.listen(f"ipc://{rundir}/late", accepting, Options())
        made[0].close()
        await late.stop()

    asyncio.run(check())


def test_a_cancelled_dial_leaves_nothing(rundir: Path):
    async def check():
        before = os.listdir("/proc/self/fd")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await zeromq.transport.dial(f"ipc://{rundir}/never", Options(connect_timeout_s=0))
        assert os.listdir("/proc/self/fd") == before

    asyncio.run(check())


def test_a_listener_whose_peers_left_first_stops_at_once(caplog):
    """Found here: it waited a second for connections whose end it had been told of."""

    async def check():
        async with listener(listening()) as (address, accepting):
            for number in range(3):
                link = await zeromq.transport.dial(address, dialling())
                link.start(Recorder())
                send_all(link, [control(0)])
                _, recorder = await accepting.link(number)
                await recorder.count(1)
                link.close()
                await recorder.end()

    asyncio.run(check())
    assert "keeps" not in caplog.text


def test_more_than_libzmqs_queue_sent_before_the_close_arrives():
    """``close`` right after more messages than SNDHWM: what libzmq has no room for follows as room comes."""
    last = numbered(2000, 100)  # a ROUTER is tried again every 10 ms: that takes it longer than LINGER_MS

    async def check():
        for closer in ("near", "far"):
            async with listener(listening()) as (address, accepting):
                near, near_in = await zeromq.transport.dial(address, dialling()), Recorder()
                near.start(near_in)
                send_all(near, [control(0)])
                far, far_in = await accepting.link(0)
                await far_in.count(1)
                mine, theirs_in = (near, far_in) if closer == "near" else (far, near_in)
                send_all(mine, last)
                mine.close()
                assert isinstance(mine.ended, LinkClosed)
                await theirs_in.end()
                assert topics(theirs_in.messages)[-len(last) :] == topics(last)
                near.abort(LinkClosed())

    asyncio.run(check())


def test_a_receiver_that_fails_costs_its_link_only(caplog):
    class Failing(Recorder):
        def received(self, link: Link, messages: list[Message]) -> None:
            raise RuntimeError("a bug in the receiver")

    async def check():
        async with listener(listening()) as (address, accepting):
            links = []
            for number in range(2):
                link = await zeromq.transport.dial(address, dialling())
                link.start(Recorder())
                send_all(link, [control(0)])
                await (await accepting.link(number))[1].count(1)
                links.append(link)
            failing = Failing()
            accepting.links[0][0].receiver = failing
            send_all(links[0], numbered(1))
            send_all(links[1], numbered(1))
            assert isinstance(await failing.end(), LinkBroken)
            await accepting.links[1][1].count(2)
            for link in links:
                link.close()

    asyncio.run(check())
    assert "a bug in the receiver" in caplog.text


class SlowLine:
    """A TCP line to ``address`` that carries ``way`` (from there ``down``, to there ``up``) as far as it is told."""

    def __init__(self, address, way):
        host, port = address.removeprefix("tcp://").split(":")
        self._target, self._way = (host, int(port)), way
        self._ends, self._tasks = [], []
        self.allowed = asyncio.Semaphore(1 << 20)

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._carry, sock=narrow())
        host, port = self._server.sockets[0].getsockname()
        self.address = f"tcp://{host}:{port}"
        return self

    async def __aexit__(self, *_exc):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self._ends:
            end.close()

    async def _carry(self, reader, writer):
        sock = narrow()
        await asyncio.get_running_loop().sock_connect(sock, self._target)
        back, forth = await asyncio.open_connection(sock=sock)
        self._ends += [writer, forth]
        down, up = (self.allowed, None) if self._way == "down" else (None, self.allowed)
        self._tasks += [
            asyncio.get_running_loop().create_task(self._copy(*each))
            for each in ((reader, forth, up), (back, writer, down))
        ]

    async def _copy(self, reader, writer, allowed):
        while True:
            if allowed is not None:
                await allowed.acquire()
            data = await reader.read(65536)
            if not data:
                return
            writer.write(data)
            await writer.drain()

    def stop(self):
        self.allowed._value = 0

    def go_on(self):
        self.allowed._value = 1 << 20
        self.allowed.release()


def narrow():
    """A socket whose kernel takes little that nobody reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


@pytest.mark.patient
@pytest.mark.parametrize("way", ["down", "up"])
def test_one_large_message_on_a_slow_line_makes_progress(way):
    """Nothing else leaves meanwhile, and a neighbour that takes it in must not be taken for stalled."""

    async def check():
        async with listener(listening()) as (address, accepting), SlowLine(address, way) as line:
            link, link_in = await zeromq.transport.dial(line.address, dialling()), Recorder()
            link.start(link_in)
            send_all(link, [event("hello")])
            far, far_in = await accepting.link(0)
            sender, receiver = (far, link_in) if way == "down" else (link, far_in)
            outbox = sender.outbox
            line.stop()
            for message in (event("big", bytes(24 << 20)), *numbered(200)):
                send_all(sender, [message])
            await standstill(outbox)
            assert outbox.queue
            sent, before = outbox.sent, outbox.progress
            while outbox.progress == before:
                line.allowed.release()
                await asyncio.sleep(0.01)
            assert outbox.sent == sent, "no message has left"
            await standstill(outbox)
            line.go_on()
            await receiver.count(201)
            link.close()

    async def standstill(outbox):
        """What buffers take is taken; nobody reads on."""
        seen, still = -1, 0
        while still < 8:
            still = still + 1 if outbox.progress == seen else 0
            seen = outbox.progress
            await asyncio.sleep(0.01)

    asyncio.run(check())


async def test_who_does_not_wait_for_a_peer_is_told_at_once_that_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = Options(connect_timeout_s=0, waits_for_peer=False)  # 0: for ever, if it waited
    with pytest.raises(LinkBroken, match="refused") as caught:
        await zeromq.transport.dial(f"tcp://127.0.0.1:{port}", options)
    assert caught.value.errno == errno.ECONNREFUSED


async def test_who_does_not_wait_is_told_at_once_that_a_name_has_no_address():
    options = Options(connect_timeout_s=0, waits_for_peer=False)
    with pytest.raises(LinkBroken, match=r"cannot resolve 'no-such-host\.invalid'"):
        await zeromq.transport.dial("tcp://no-such-host.invalid:1", options)


async def test_every_address_of_a_name_is_tried_though_the_first_one_keeps_silent(monkeypatch):
    said = []
    async with listener(Options(insecure=True), "tcp://127.0.0.1:*") as (address, _accepting):
        port = int(address.rpartition(":")[2])
        with socket.create_server(("127.0.0.2", port)):  # takes connections and says nothing
            found = [(0, 0, 0, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_wanted, **_more: found)
            monkeypatch.setattr(dialing, "ADDRESS_S", 0.05)
            options = Options(connect_timeout_s=PATIENCE_S, failing=said.append)
            link = await zeromq.transport.dial(f"tcp://node0:{port}", options)
            link.close()
    assert not said
