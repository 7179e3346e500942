"""Children that were admitted: status, goodbye, loss, replacement, silence, events."""

import asyncio
import errno

from broker.node.overlay import control, hello
from broker.node.overlay.control import Status
from broker.node.overlay.hello import Hello
from broker.wire.message import CONTROL, RESPONSE, ROUTE, Message, event, request
from broker.wire.parts import encode_part
from tests.unit.node.overlay.downward import HELLO, OTHER, Parent, ask, run, say
from tests.unit.node.overlay.trees import until


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


def test_goodbye_of_a_guest_behind_a_child_is_none():
    async def story(parent):
        child = await parent.join()
        say(child, request("overlay.goodbye", matchtag=4, rolemask=2))
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
        await until(lambda: parent.broker.router.counters.drops.get("response to no open call"))
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
        assert parent.broker.router.counters.sent()["control"] == 2

    run(story)


def test_nobody_is_admitted_while_we_leave():
    async def story(parent):
        await parent.join()
        assert not await parent.overlay.children_gone(0.01)
        parent.overlay.refuse_children()
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
        await until(lambda: parent.broker.router.counters.controls)
        parent.overlay.pulse()
        assert parent.told[-1] == ("child", 1, "full", False)

    run(story, torpid_max_s=0.02)


def test_the_timer_notices_silence_without_any_heartbeat():
    async def story(parent):
        await parent.join()
        await until(lambda: parent.told[-1] == ("child", 1, "full", True))

    run(story, torpid_min_s=0.02, torpid_max_s=0.05)
