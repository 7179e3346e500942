"""The parent's side, with the child played by the test: what deployed brokers answer, ours answers."""

import asyncio
import errno
from dataclasses import replace

import pytest

from broker.identity import PeerInfo
from broker.node.overlay import control, hello
from broker.node.overlay.hello import Hello, Ours
from broker.node.overlay.status import Status
from broker.routing.topology import Topology
from broker.transport import inproc
from broker.transport.link import Options
from broker.wire.message import CONTROL, RESPONSE, ROUTE, Message, event, request
from broker.wire.parts import encode_part
from broker.wire.payload import any_text, decode_json
from tests.unit.node.overlay.trees import OWNER, OWNER_CRED, QUICK, Client, Rank, place, until

UUID = "9304037f-f976-439e-aebd-4a5224d6d28c"
OTHER = "7a4a2881-56bc-4dd8-923f-04bd8b6352b4"
HELLO = Hello(1, 0x5800, UUID, Status.FULL)


class Parent(Rank):
    """Rank 0 of three, to which children of the test connect."""

    def __init__(self, **config):
        config = {"listen_uri": place(), "hostnames": {0: "node0", 1: "node1", 2: "node2"}, **config}
        super().__init__(0, Topology(3), replace(QUICK, **config))

    async def __aenter__(self):
        await self.overlay.start()
        return self

    async def __aexit__(self, *_error):
        await self.overlay.stop()

    def connect(self, **peer) -> Client:
        """A link to the listener, with nothing said yet."""
        mine, theirs = inproc.pair(
            PeerInfo("parent"), PeerInfo("child", **peer), Options(), Options(flusher=self.broker.flusher)
        )
        self.overlay._children.accept(theirs)
        return Client(mine)

    async def join(self, told=HELLO) -> Client:
        child = self.connect()
        answer = await ask(child, hello.encode(told))
        assert answer.errnum == 0
        return child

    def health(self, rank=1):
        return next(entry for entry in self.overlay.child_health() if entry["rank"] == rank)


def say(child, message):
    child.link.send(message)
    child.link.flush()


async def ask(child, message) -> Message:
    """Send; the next message that comes back."""
    before = len(child.inbox)
    say(child, message)
    await until(lambda: len(child.inbox) > before)
    return child.inbox[before]


def run(story, **config):
    async def main():
        async with Parent(**config) as parent:
            await story(parent)

    asyncio.run(main())


def test_a_child_is_admitted_with_our_uuid_and_is_online():
    async def story(parent):
        assert parent.overlay.subtree_status() == "partial"
        child = parent.connect()
        answer = await ask(child, hello.encode(HELLO))
        assert (answer.type, answer.topic, answer.errnum) == (RESPONSE, "overlay.hello", 0)
        assert decode_json(answer.payload) == {"uuid": parent.broker.router.uuid}
        assert parent.health()["status"] == "full"
        assert parent.overlay.online_children() == [1]
        assert parent.told == [("child", 1, "full", False)]

    run(story)


def test_a_subtree_is_full_when_every_child_is():
    async def story(parent):
        await parent.join()
        await parent.join(Hello(2, 0x5800, OTHER, Status.FULL))
        assert parent.overlay.subtree_status() == "full"
        assert parent.told[-1] == ("status", "full")
        assert parent.overlay.status_since() < 10

    run(story)


def test_what_is_ours_is_told_only_to_ours():
    async def story(parent):
        child = parent.connect()
        answer = await ask(child, hello.encode(HELLO._replace(ours=Ours(True, True))))
        ours = hello.read_answer(answer).ours
        assert ours == Ours(True, True, parent.broker.router.uuid)

    run(story)


@pytest.mark.parametrize(("offered", "allowed"), [(False, True), (True, False)])
def test_batches_are_agreed_on_only_where_both_take_them(offered, allowed):
    async def story(parent):
        child = parent.connect()
        answer = await ask(child, hello.encode(HELLO._replace(ours=Ours(True, offered))))
        assert not hello.read_answer(answer).ours.batch

    run(story, batch=allowed)


@pytest.mark.parametrize(
    ("told", "rolemask", "errnum", "text"),
    [
        (HELLO, 0, errno.EPERM, ""),
        (HELLO._replace(hostname="node2"), 1, errno.EINVAL, ""),
        (
            HELLO._replace(rank=2, version=0x4B00),
            1,
            errno.EINVAL,
            "client (0.75.0) version mismatched with server (0.88.0)",
        ),
        (HELLO._replace(rank=0), 1, errno.EINVAL, "rank 0 is not a child of rank 0: mismatched config?"),
    ],
)
def test_refusals(told, rolemask, errnum, text):
    async def story(parent):
        message = hello.encode(told)
        message.set_credentials(0xFFFFFFFF, rolemask)
        child = parent.connect()
        answer = await ask(child, message)
        assert (answer.errnum, any_text(answer.payload)) == (errnum, text)
        assert parent.overlay.online_children() == []

    run(story)


def test_why_a_child_was_refused_is_part_of_its_health():
    async def story(parent):
        child = parent.connect()
        await ask(child, hello.encode(HELLO._replace(version=0x4B00)))
        assert parent.health()["error"] == "client (0.75.0) version mismatched with server (0.88.0)"
        await ask(child, hello.encode(HELLO))
        assert "error" not in parent.health()

    run(story)


def test_a_key_speaks_for_its_own_rank_only():
    async def story(parent):
        child = parent.connect(curve_key="k" * 40, rank=2)
        answer = await ask(child, hello.encode(HELLO))
        assert (answer.errnum, any_text(answer.payload)) == (
            errno.EPERM,
            "the key is that of rank 2, not of rank 1",
        )

    run(story)


def test_a_hello_that_is_none_is_answered_eproto():
    async def story(parent):
        answer = await ask(parent.connect(), request("overlay.hello", b"{}\0", rolemask=1))
        assert (answer.errnum, answer.payload) == (errno.EPROTO, None)

    run(story)


@pytest.mark.parametrize(
    "message", [request("broker.ping", matchtag=3), control.heartbeat(), request("overlay.goodbye")]
)
def test_whoever_speaks_before_hello_is_told_to_disconnect(message):
    async def story(parent):
        answer = await ask(parent.connect(), message)
        assert (answer.type, answer.aux1, answer.aux2) == (CONTROL, control.DISCONNECT, 0)

    run(story)


def test_a_peer_may_still_say_hello_after_it_was_told_to_disconnect():
    async def story(parent):
        child = parent.connect()
        await ask(child, control.heartbeat())
        assert (await ask(child, hello.encode(HELLO))).errnum == 0

    run(story)


def test_messages_right_behind_hello_are_served():
    async def story(parent):
        child = parent.connect()
        child.link.send(hello.encode(HELLO))
        child.link.send(request("probe.ping", matchtag=9))
        child.link.flush()
        await until(lambda: len(child.inbox) == 2)
        assert [(m.topic, m.errnum) for m in child.inbox] == [("overlay.hello", 0), ("probe.ping", 0)]

    run(story)


def test_stamps_of_a_child_are_trusted_but_for_local():
    async def story(parent):
        child = await parent.join()
        await ask(child, request("probe.ping", matchtag=9, userid=1234, rolemask=2 | 4))
        assert (parent.requests[-1].userid, parent.requests[-1].rolemask) == (1234, 2)
        assert parent.requests[-1].routes == [UUID.encode()]

    run(story)


def test_status_of_a_child_counts_and_travels():
    async def story(parent):
        child = await parent.join()
        say(child, control.status(Status.DEGRADED))
        await until(lambda: parent.health()["status"] == "degraded")
        assert parent.overlay.subtree_status() == "degraded"
        say(child, control.status(77))
        say(child, control.status(Status.FULL))
        await until(lambda: parent.health()["status"] == "full")
        assert parent.overlay.subtree_status() == "partial"  # rank 2 never came

    run(story)


def test_a_child_that_says_offline_is_gone():
    async def story(parent):
        child = await parent.join()
        say(child, control.status(Status.OFFLINE))
        await until(lambda: parent.health()["status"] == "offline")
        assert (await parent.call(1)).errnum == errno.EHOSTUNREACH

    run(story)


def test_goodbye_is_answered_and_later_messages_are_told_to_disconnect():
    async def story(parent):
        child = await parent.join()
        answer = await ask(child, request("overlay.goodbye", rolemask=1))
        assert (answer.type, answer.topic, answer.errnum, answer.flags) == (
            RESPONSE,
            "overlay.goodbye",
            0,
            9,
        )
        await until(lambda: parent.health()["status"] == "offline")
        assert parent.health()["error"] == "administrative shutdown"
        answer = await ask(child, request("probe.ping", matchtag=9))
        assert (answer.type, answer.aux1) == (CONTROL, control.DISCONNECT)
        assert parent.requests == []

    run(story)


def test_goodbye_is_no_method_for_clients():
    async def story(parent):
        await parent.join()
        client = parent.client()
        say(client, request("overlay.goodbye", matchtag=4))
        await until(lambda: parent.requests)
        assert parent.requests[0].topic == "overlay.goodbye"
        assert parent.overlay.online_children() == [1]

    run(story)


def test_a_lost_child_is_lost_and_its_pending_calls_are_answered():
    async def story(parent):
        child = await parent.join()
        call = asyncio.get_running_loop().create_task(parent.call(1, "probe.wait"))
        await until(lambda: child.inbox[1:])
        child.link.close()
        assert (await call).errnum == errno.EHOSTUNREACH
        assert parent.health()["status"] == "lost"
        assert parent.health()["error"] == "lost connection"
        assert parent.overlay.subtree_status() == "degraded"

    run(story)


def test_a_new_incarnation_replaces_the_old():
    async def story(parent):
        old = await parent.join()
        call = asyncio.get_running_loop().create_task(parent.call(1, "probe.wait"))
        await until(lambda: old.inbox[1:])
        new = await parent.join(HELLO._replace(uuid=OTHER))
        assert (await call).errnum == errno.EHOSTUNREACH
        await until(lambda: old.ended)
        assert [told[2] for told in parent.told if told[0] == "child"] == ["full", "lost", "full"]
        call = asyncio.get_running_loop().create_task(parent.call(1, "probe.wait"))
        await until(lambda: len(new.inbox) == 2)
        sent = new.inbox[1]
        assert sent.routes[0] == parent.broker.router.uuid.encode()
        answer = Message(
            sent.front,
            sent.topic_part,
            b"",
            b"\x14" + bytes((0x8E, 1, RESPONSE, 9)) + sent.head[5:13] + bytes(4),
            sent.tag,
        )
        say(new, answer)
        assert (await call).errnum == 0

    run(story)


def test_a_broken_hello_does_not_replace_a_child():
    async def story(parent):
        await parent.join()
        answer = await ask(parent.connect(), hello.encode(HELLO._replace(uuid=OTHER, version=0x4B00)))
        assert answer.errnum == errno.EINVAL
        assert parent.overlay.online_children() == [1]

    run(story)


def test_a_uuid_in_use_is_refused():
    async def story(parent):
        await parent.join()
        answer = await ask(parent.connect(), hello.encode(HELLO._replace(rank=2)))
        assert answer.errnum == errno.EEXIST

    run(story)


def test_responses_are_taken_only_from_the_child_that_was_asked():
    async def story(parent):
        first = await parent.join()
        second = await parent.join(Hello(2, 0x5800, OTHER, Status.FULL))
        call = asyncio.get_running_loop().create_task(parent.call(1, "probe.wait"))
        await until(lambda: first.inbox[1:])
        sent = first.inbox[1]
        forged = Message(
            sent.front, sent.topic_part, b"", b"\x14\x8e\x01\x02\x09" + sent.head[5:13] + bytes(4), sent.tag
        )
        say(second, forged)
        await until(lambda: parent.broker.router.tally.drops.get("response to no open call"))
        assert not call.done()
        call.cancel()

    run(story)


def test_disconnect_tells_the_child_and_forgets_it():
    async def story(parent):
        child = await parent.join()
        assert parent.overlay.disconnect_child(2, "x") == errno.EINVAL
        assert parent.overlay.disconnect_child(5, "x") == errno.ENOENT
        assert parent.overlay.disconnect_child(1, "administrative disconnect") == 0
        await until(lambda: child.inbox[1:])
        assert (child.inbox[1].type, child.inbox[1].aux1) == (CONTROL, control.DISCONNECT)
        assert parent.health()["status"] == "lost"
        assert parent.health()["error"] == "administrative disconnect"
        assert (await ask(child, control.heartbeat())).aux1 == control.DISCONNECT

    run(story)


def test_nobody_is_admitted_while_we_leave():
    async def story(parent):
        await parent.join()
        assert not await parent.overlay.children_gone(0.01)
        parent.overlay.spurn()
        answer = await ask(parent.connect(), hello.encode(HELLO._replace(rank=2, uuid=OTHER)))
        assert (answer.type, answer.aux1) == (CONTROL, control.DISCONNECT)
        parent.overlay.disconnect_child(1, "")
        assert await parent.overlay.children_gone(1)

    run(story)


def test_stopping_tells_those_who_are_left():
    async def main():
        parent = Parent()
        await parent.overlay.start()
        child = await parent.join()
        await parent.overlay.stop()
        await until(lambda: child.ended)
        assert [m.aux1 for m in child.inbox if m.type == CONTROL] == [control.DISCONNECT]
        await parent.overlay.stop()

    asyncio.run(main())


def test_events_come_down_numbered_with_the_delimiter_deployed_brokers_send():
    async def story(parent):
        child = await parent.join()
        parent.publish("a.b")
        await until(lambda: child.inbox[1:])
        got = child.inbox[1]
        assert (got.topic, got.sequence, got.routes) == ("a.b", 1, [])
        assert got.flags & ROUTE

    run(story)


def test_an_event_of_a_child_is_numbered_and_comes_back_whatever_routes_it_had():
    async def story(parent):
        child = await parent.join()
        message = event("ev.up", b"x", userid=5, rolemask=2 | 4)
        message.front = encode_part(b"c" * 36) + message.front
        say(child, message)
        await until(lambda: child.inbox[1:])
        assert (child.inbox[1].sequence, child.inbox[1].routes) == (1, [])
        assert (child.inbox[1].userid, child.inbox[1].rolemask) == (5, 2)
        assert [e.topic for e in parent.events] == ["ev.up"]

    run(story)


def test_a_silent_child_is_torpid_until_it_speaks_and_stays_online():
    async def story(parent):
        child = await parent.join()
        await asyncio.sleep(0.03)
        parent.overlay.pulse()
        assert parent.told[-1] == ("child", 1, "full", True)
        assert parent.health()["status"] == "full"
        say(child, control.heartbeat())
        await until(lambda: parent.broker.router.tally.controls)
        parent.overlay.pulse()
        assert parent.told[-1] == ("child", 1, "full", False)

    run(story, torpid_max_s=0.02)


def test_the_timer_notices_silence_without_any_heartbeat():
    async def story(parent):
        await parent.join()
        await until(lambda: parent.told[-1] == ("child", 1, "full", True))

    run(story, torpid_min_s=0.02, torpid_max_s=0.05)


@pytest.mark.parametrize(
    ("peer", "errnum"),
    [
        (PeerInfo("key", curve_key="k", rank=1), 0),
        (PeerInfo("shared key", curve_key="k"), 0),
        (PeerInfo("plain tcp on loopback"), 0),
        (PeerInfo("owner on ipc", uid=OWNER), 0),
        (PeerInfo("another user on ipc", uid=OWNER + 1), errno.EPERM),
        (PeerInfo("a client's key", curve_key="k", user=OWNER_CRED), errno.EPERM),
    ],
    ids=lambda value: value.address.replace(" ", "-") if isinstance(value, PeerInfo) else "",
)
def test_who_may_say_hello_at_all(peer, errnum):
    async def story(parent):
        assert parent.overlay._admit(peer) == errnum

    run(story)
