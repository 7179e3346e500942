"""UNIX sockets at their edges: files, descriptors, and who is told what at the door."""

import asyncio
import errno
import os
import socket
import stat
from itertools import pairwise

import pytest

from broker.errors import ConfigError, LinkBroken, LinkEnded, LinkRefused
from broker.identity import Credentials, PeerInfo, Role
from broker.ingress.admission import Access
from broker.node.client_admission import ClientAdmission
from broker.routing.users import UserLimits
from broker.transport import handshaking
from broker.transport import unix as module
from broker.transport.handshaking import SpareDescriptor
from broker.transport.link import DescriptorReserve, Options
from broker.transport.unix import transport as unix
from broker.wire.message import MAGIC_DEPLOYED, RESPONSE, event
from tests.tables import for_each
from tests.unit.node.desk import Desk, Door, PaperLink, ask, run, ticks, until


async def listening(path):
    return await unix.listen(f"local://{path}", lambda link: None, Options())


def test_a_stale_socket_is_replaced(rundir):
    async def script():
        path = rundir / "s"
        with socket.socket(socket.AF_UNIX) as old:
            old.bind(str(path))
        listener = await listening(path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o777
        await listener.stop()
        assert not path.exists()

    run(script())


def test_who_is_connected_gets_turns_while_a_crowd_comes(rundir):
    async def script():
        came = []
        listener = await unix.listen(f"local://{rundir}/s", came.append, Options())
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(3 * handshaking.ACCEPTS)]
        for sock in crowd:
            sock.connect(str(rundir / "s"))
        seen = []
        while len(came) < len(crowd):
            seen.append(len(came))
            await asyncio.sleep(0)
        assert {after - before for before, after in pairwise(seen)} <= {0, handshaking.ACCEPTS}
        await listener.stop()
        for link in came:
            link.close()
        for sock in crowd:
            sock.close()

    run(script())


def test_a_socket_in_use_is_left_alone(rundir):
    async def script():
        path = rundir / "s"
        first = await listening(path)
        with pytest.raises(ConfigError) as caught:
            await listening(path)
        assert caught.value.errno == errno.EADDRINUSE
        assert str(path) in str(caught.value)
        await first.stop()

    run(script())


@pytest.mark.parametrize("make", [lambda p: p.write_text("precious"), lambda p: p.mkdir()])
def test_what_is_no_socket_is_left_alone(rundir, make):
    async def script():
        path = rundir / "s"
        make(path)
        with pytest.raises(ConfigError):
            await listening(path)
        assert path.exists()
        assert not stat.S_ISSOCK(os.stat(path).st_mode)

    run(script())


def test_stop_leaves_a_socket_file_that_is_not_its_own(rundir):
    async def script():
        path = rundir / "s"
        first = await listening(path)
        path.unlink()
        second = await listening(path)
        await first.stop()
        await first.stop()
        assert path.exists()
        await second.stop()
        assert not path.exists()

    run(script())


def test_stop_does_not_mind_that_the_file_is_gone(rundir):
    async def script():
        listener = await listening(rundir / "s")
        (rundir / "s").unlink()
        await listener.stop()

    run(script())


@for_each("uri", ["local://relative", "local:///" + "x" * 107, "tcp:///x", "local://", "/bare"])
def test_addresses_that_cannot_be(uri):
    with pytest.raises(ConfigError):
        asyncio.run(module.transport.dial(uri, Options()))
    with pytest.raises(ConfigError):
        asyncio.run(module.transport.listen(uri, None, Options()))


def test_the_longest_path_that_fits(rundir):
    async def script():
        path = str(rundir) + "/" + "x" * (106 - len(str(rundir)))
        assert len(path) == 107
        listener = await listening(path)
        await listener.stop()

    run(script())


def test_a_missing_directory_is_said(rundir):
    async def script():
        with pytest.raises(ConfigError, match="No such file"):
            await listening(rundir / "not" / "there")

    run(script())


def test_no_permission_is_said(rundir):
    """Root may write everywhere: as root, the attempt is nobody's."""
    me = os.geteuid()

    async def script():
        rundir.chmod(0o500)
        if me == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(ConfigError, match="ermission"):
                await listening(rundir / "s")
        finally:
            os.seteuid(me)
            rundir.chmod(0o700)

    run(script())


def test_dialing_nobody(rundir):
    async def script():
        with pytest.raises(LinkBroken) as caught:
            await unix.dial(f"local://{rundir}/s", Options())
        assert caught.value.errno == errno.ENOENT
        with socket.socket(socket.AF_UNIX) as old:
            old.bind(str(rundir / "s"))
        with pytest.raises(LinkBroken) as caught:
            await unix.dial(f"local://{rundir}/s", Options())
        assert caught.value.errno == errno.ECONNREFUSED

    run(script())


@for_each(
    ("greeting", "error", "number"),
    [
        (b"", LinkEnded, errno.ECONNRESET),
        (b"\x01", LinkRefused, errno.EPERM),
        (b"\x6f", LinkRefused, errno.ECONNREFUSED),
    ],
)
def test_what_a_server_may_say_first(rundir, greeting, error, number):
    async def script():
        async def serve(_reader, writer):
            writer.write(greeting)
            writer.close()

        server = await asyncio.start_unix_server(serve, rundir / "s")
        with pytest.raises(error) as caught:
            await unix.dial(f"local://{rundir}/s", Options())
        assert caught.value.errno == number
        server.close()
        await server.wait_closed()

    run(script())


def test_a_server_that_says_nothing(rundir):
    async def script():
        with socket.socket(socket.AF_UNIX) as mute:
            mute.bind(str(rundir / "s"))
            mute.listen()
            with pytest.raises(LinkBroken, match=r"no handshake within 0\.05 s"):
                await unix.dial(f"local://{rundir}/s", Options(connect_timeout_s=0.05))

    run(script())


def test_a_full_queue_at_the_door_is_waited_out(rundir):
    """Found here: a nonblocking connect to a full listen queue fails at once, and was taken for connected."""

    async def script():
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as slow, socket.socket(socket.AF_UNIX) as first:
            slow.bind(str(rundir / "s"))
            slow.listen(0)
            slow.setblocking(False)
            first.connect(str(rundir / "s"))
            async with asyncio.TaskGroup() as group:
                dialing = group.create_task(unix.dial(f"local://{rundir}/s", Options(connect_timeout_s=5)))
                await asyncio.sleep(0.05)
                assert not dialing.done()
                for _ in range(2):
                    sock, _ = await loop.sock_accept(slow)
                    with sock:
                        await loop.sock_sendall(sock, b"\0")
            dialing.result().close()

    run(script())


# -- the listening side -----------------------------------------------------------------------------


def raw(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    sock.settimeout(5)
    return sock


def test_a_guest_is_told_why_and_shown_out(rundir, caplog):
    async def script():
        desk = Desk()
        async with Door(desk, rundir / "s", Access(os.getuid() + 1)) as door:
            sock = raw(rundir / "s")
            await ticks(5)
            await until(lambda: True)
            await asyncio.sleep(0.02)
            assert sock.recv(10) == b"\x01"
            assert sock.recv(10) == b""
            sock.close()
            assert door.clients == []
            assert "guests are not allowed" in caplog.text

    run(script())


def test_a_closed_door_refuses_with_a_number(rundir):
    async def script():
        async with Door(Desk(), rundir / "s") as door:
            door.client_admission.open = False
            with pytest.raises(LinkRefused) as caught:
                await unix.dial(door.uri, Options())
            assert caught.value.errno == errno.ECONNREFUSED

    run(script())


def test_a_peer_that_is_gone_before_it_was_greeted(rundir):
    async def script():
        async with Door(Desk(), rundir / "s") as door:
            for _ in range(5):
                raw(rundir / "s").close()
            await asyncio.sleep(0.02)
            await until(lambda: door.clients == [])
            good = await door.dial()
            good.say(ask("probe.x"))
            await until(lambda: good.of(RESPONSE))

    run(script())


class Counted:
    """The listening socket of a listener: ``left`` more connections find a descriptor, beside its spare one."""

    def __init__(self, listener):
        self.listener, self.left, self.calls = listener, 0, 0
        self._sock, listener._sock = listener._sock, self

    def fileno(self):
        return self._sock.fileno()

    def close(self):
        self._sock.close()

    def accept(self):
        self.calls += 1
        if self.left == 0 and self.listener._spare._fd >= 0:
            raise OSError(errno.EMFILE, "Too many open files")
        accepted = self._sock.accept()
        self.left = max(0, self.left - 1)
        return accepted

    def go_on(self):
        """The pause is over."""
        self.listener._retry.cancel()
        self.listener._try_again()


async def refusal_of(door):
    with pytest.raises(LinkRefused) as caught:
        await door.dial()
    return caught.value.errno


def test_out_of_descriptors_newcomers_are_told_and_accepting_rests_and_goes_on(rundir, monkeypatch, caplog):
    monkeypatch.setattr(handshaking, "ACCEPT_RETRY_S", 3600.0)

    async def script():
        async with Door(Desk(), rundir / "s") as door:
            counted = Counted(door.listener)
            waiting = [raw(rundir / "s") for _ in range(5)]
            await until(lambda: counted.calls)
            assert [sock.recv(2) for sock in waiting] == [bytes((errno.EMFILE,))] * 5, (
                "all who wait are told at once"
            )
            calls = counted.calls
            late = raw(rundir / "s")
            await ticks(20)
            assert counted.calls == calls, "it does not spin"
            counted.go_on()
            await until(lambda: counted.calls > calls)
            assert late.recv(2) == bytes((errno.EMFILE,))
            assert caplog.text.count("are turned away until some descriptors are free") == 1
            counted.left = 1 << 30
            counted.go_on()
            good = await door.dial()
            good.say(ask("probe.x"))
            await until(lambda: good.of(RESPONSE))
            for sock in (*waiting, late):
                sock.close()

    run(script())


def test_the_spare_descriptor_is_lent_once_and_had_back_when_there_is_one(monkeypatch):
    spare = SpareDescriptor()
    assert spare.lend()
    assert not spare.lend()

    def none_left(*_args):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", none_left)
        spare.renew()
        assert not spare.lend()
    spare.renew()
    spare.renew()
    assert spare.lend()


@pytest.mark.parametrize("owner", [True, False])
def test_the_last_descriptors_are_the_owners(rundir, caplog, owner):
    async def script():
        turned_away = []
        access = Access(os.getuid() if owner else os.getuid() + 1, allow_guest=True)
        async with Door(Desk(), rundir / "s", access) as door:
            door.options.has_reserve = door.client_admission.is_owner
            door.options.refused = lambda peer, errnum, reason: turned_away.append((peer.uid, errnum))
            first, second, third = await door.dial(), await door.dial(), lowest_free()
            assert (first.ended, second.ended) == (None, None)
            door.options.reserve = DescriptorReserve(third, 0)
            if owner:
                for _ in range(3):
                    await door.dial()
                assert len(door.clients) == 5
                assert not turned_away
                return
            assert [await refusal_of(door) for _ in range(3)] == [errno.EMFILE] * 3
            assert turned_away == [(os.getuid(), errno.EMFILE)] * 3
            assert len(door.clients) == 2
            assert caplog.text.count("what descriptors are left is the owner's") == 1
            door.options.reserve = DescriptorReserve()
            await door.dial()

    run(script())


def lowest_free():
    fd = os.dup(0)
    os.close(fd)
    return fd


def test_one_user_has_so_many_connections_and_the_owner_any_number(rundir, caplog):
    async def script(owner):
        desk = Desk()
        desk.broker.router.users.limits = UserLimits(connections=3)
        async with Door(desk, rundir / "s", Access(owner, allow_guest=True)) as door:
            fars = [await door.dial() for _ in range(3)]
            if owner == os.getuid():
                await door.dial()
                return
            assert await refusal_of(door) == errno.EAGAIN
            text = f"userid {os.getuid()} has 3 connections, limits.connections_per_user allows 3"
            assert text in caplog.text
            fars[0].link.close()
            await until(lambda: len(door.clients) == 2)
            await door.dial()

    run(script(os.getuid() + 1))
    run(script(os.getuid()))


def test_who_became_one_too_many_since_it_was_admitted_is_ended(caplog):
    """A CURVE client is admitted by its handshake and comes with its first message."""

    async def script():
        desk = Desk()
        desk.broker.router.users.limits = UserLimits(connections=2)
        door = ClientAdmission(desk.broker, Access(1000, allow_guest=True), 100, 1000)
        links = [PaperLink(Options(flusher=desk.broker.flusher)) for _ in range(4)]
        for link in links:
            link.peer = PeerInfo("tcp://x", key="k", user=Credentials(77, Role.USER))
            assert door.admit(link.peer) == 0
        for link in links:
            door.accept(link)
        assert [link.ended is None for link in links] == [True, True, False, False]
        assert links[2].ended.errno == errno.EAGAIN
        assert len(desk.broker.router.ports) == 3, "the broker's own and two"

    run(script())


def test_a_half_frame_and_an_end_cost_nobody_anything(rundir):
    async def script():
        desk = Desk()
        async with Door(desk, rundir / "s") as door:
            sock = raw(rundir / "s")
            await until(lambda: len(door.clients) == 1)
            sock.sendall(ask("probe.x").framed() + ask("probe.y").framed()[:-5])
            await until(lambda: len(desk.delivered) == 1)
            sock.close()
            await until(lambda: door.clients == [])
            assert [m.topic for m in desk.delivered] == ["probe.x", "probe.disconnect"]

    run(script())


@for_each("bad", [b"HTTP/1.1", MAGIC_DEPLOYED + b"\0\0\0\0", MAGIC_DEPLOYED + b"\xff\xff\xff\xff"])
def test_what_is_no_frame_ends_its_link_after_what_came_before(rundir, bad):
    async def script():
        desk = Desk(batch_msgs=4)
        async with Door(desk, rundir / "s") as door:
            sock = raw(rundir / "s")
            await until(lambda: len(door.clients) == 1)
            sock.sendall(b"".join(event(str(n)).framed() for n in range(20)) + bad)
            await until(lambda: door.clients == [])
            assert desk.broker.router.events.sequence == 20
            sock.close()

    run(script())


def test_sent_counts_each_message_once(rundir):
    """Found here: a message written in several pieces was counted once for each."""

    async def script():
        async with Door(Desk(), rundir / "s") as door:
            far = await door.dial()
            await until(lambda: len(door.clients) == 1)
            (port,) = door.clients
            port.send(event("big", b"x" * 3_000_000))
            port.send(event("small"))
            await until(lambda: len(far.inbox) == 2)
            assert port.link.outbox.sent == 2

    run(script())
