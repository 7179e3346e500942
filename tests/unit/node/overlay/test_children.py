"""The parent's side, with the child played by the test: who is admitted, and with which answer, as deployed."""

import errno
from unittest import mock

from broker.identity import PeerInfo
from broker.node.overlay import control, hello
from broker.node.overlay.children import HELD_MSGS
from broker.node.overlay.control import Status
from broker.node.overlay.hello import HeadgateHello, Hello
from broker.wire.message import CONTROL, RESPONSE, request
from broker.wire.payload import any_text, decode_json
from tests.tables import for_each
from tests.unit.node.overlay.downward import HELLO, OTHER, UUID, ask, run, say
from tests.unit.node.overlay.trees import OWNER, OWNER_CRED, until


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


def test_a_rank_that_joins_again_and_again_is_told_with_both_places():
    async def story(parent):
        for number in range(6):
            assert parent.health().get("joins", 1) == max(number, 1)
            child = parent.connect()
            told = HELLO._replace(uuid=f"{UUID[:-1]}{number}", hostname="node1")
            assert (await ask(child, hello.encode(told))).errnum == 0
        health = parent.health()
        assert (health["status"], health["joins"], health["places"]) == ("full", 6, ["child on node1"])
        assert next(iter(parent.overlay._children)).health(parent.overlay._clock() + 61).get("joins") is None

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
        answer = await ask(child, hello.encode(HELLO._replace(ours=HeadgateHello(True, True))))
        ours = hello.read_answer(answer).ours
        assert ours == HeadgateHello(True, True, parent.broker.router.uuid, 5.0)

    run(story)


@for_each(("offered", "allowed"), [(False, True), (True, False)])
def test_batches_are_agreed_on_only_where_both_take_them(offered, allowed):
    async def story(parent):
        child = parent.connect()
        answer = await ask(child, hello.encode(HELLO._replace(ours=HeadgateHello(True, offered))))
        assert not hello.read_answer(answer).ours.batch

    run(story, batch=allowed)


@for_each(
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
        ((peer, number, reason),) = parent.refusals
        assert (bool(peer.address), number) == (True, errnum)
        assert f"hello of rank {told.rank}: " in reason

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
        child = parent.connect(key="k" * 40, rank=2)
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


@for_each("message", [request("broker.ping", matchtag=3), control.heartbeat(), request("overlay.goodbye")])
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


@for_each(
    ("peer", "errnum"),
    [
        (PeerInfo("key", key="k", rank=1), 0),
        (PeerInfo("shared key", key="k"), 0),
        (PeerInfo("plain tcp on loopback"), 0),
        (PeerInfo("owner on ipc", uid=OWNER), 0),
        (PeerInfo("another user on ipc", uid=OWNER + 1), errno.EPERM),
        (PeerInfo("a client's key", key="k", user=OWNER_CRED), errno.EPERM),
    ],
    ids=lambda value: value.address.replace(" ", "-") if isinstance(value, PeerInfo) else "",
)
def test_who_may_say_hello_at_all(peer, errnum):
    async def story(parent):
        assert parent.overlay._admit(peer) == errnum

    run(story)


def test_a_child_that_waits_to_be_admitted_is_read_on_to_a_limit_and_leaves_as_any_other():
    async def story(parent):
        children = parent.overlay._children
        ready, children._ready = children._ready, lambda: False
        child = parent.connect()
        say(child, hello.encode(HELLO))
        await until(lambda: children._held)
        (link,) = children._held
        with mock.patch.object(type(link), "pause") as pause:
            for _ in range(HELD_MSGS - 1):
                say(child, request("early"))
            await until(lambda: len(children._held[link]) == HELD_MSGS)
            pause.assert_not_called()
            say(child, request("one.too.many"))
            await until(lambda: pause.called)
        child.link.close()
        await until(lambda: not children._held)
        children._ready = ready
        children.admit_held()
        assert parent.overlay.online_children() == []

    run(story)
