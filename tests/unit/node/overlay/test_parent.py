"""The child's side, with the parent played by the test: joining, serving, silence, goodbye."""

import asyncio
import errno
import time

import pytest

from broker.errors import LinkRefused
from broker.node.overlay import control, hello
from broker.node.overlay.hello import HeadgateHello
from broker.transport import registry
from broker.transport.link import Options
from broker.wire.message import (
    EVENT,
    REQUEST,
    UPSTREAM,
    event,
    response,
)
from broker.wire.payload import decode_json
from tests.tables import for_each
from tests.unit.node.overlay.trees import OWNER, until
from tests.unit.node.overlay.upward import PARENT, PlayedParent, Story, run


def test_hello_says_who_we_are():
    async def tell(story):
        told = decode_json(story.link.inbox[0].payload)
        ours = told.pop("headgate")
        assert (ours["batch"], ours["keepalive_s"]) == (2, 5.0)
        assert told == {
            "rank": 1,
            "version": 0x5800,
            "uuid": story.child.broker.router.uuid,
            "status": 2,
            "hostname": "here",
        }
        assert story.child.told == [("joined",)]
        assert story.child.overlay.joined()
        assert story.child.overlay.parent_uuid() == PARENT

    run(tell, hostname="here")


def test_a_leaf_is_full_and_a_nameless_host_says_no_name():
    async def tell(story):
        told = decode_json(story.link.inbox[0].payload)
        assert told["status"] == 1
        assert "hostname" not in told

    run(tell, size=2)


def test_we_answer_with_the_stack_we_received():
    async def tell(story):
        story.link.ask_down("probe.ping")
        await until(lambda: story.link.inbox[1:])
        answer = story.link.inbox[1]
        assert answer.routes == [PARENT.encode(), b"c" * 36]
        assert story.child.requests[0].rolemask == 1  # LOCAL ends at the hop

    run(tell)


def test_our_own_requests_go_up_without_the_parents_hop():
    async def tell(story):
        call = asyncio.get_running_loop().create_task(story.child.call(0))
        await until(lambda: story.link.inbox[1:])
        sent = story.link.inbox[1]
        assert sent.routes == [story.child.broker.own.uuid.encode()]
        story.link.say(response(sent, b"up", userid=OWNER, rolemask=1))
        assert (await call).payload == b"up"

    run(tell)


def test_events_come_down_to_clients_and_children():
    async def tell(story):
        story.link.say(event("a.b", sequence=7))
        await until(lambda: story.child.events)
        assert story.child.events[0].sequence == 7

    run(tell)


def test_a_gap_in_event_numbers_is_counted():
    async def tell(story):
        for number in (7, 8, 12, 12, 13):
            story.link.say(event("a.b", sequence=number))
        await until(lambda: len(story.child.events) == 4)
        assert (story.child.overlay.event_gaps, story.child.overlay.events_missed) == (1, 3)

    run(tell)


def test_our_events_go_up_unnumbered_and_come_down_before_anybody_here_sees_them():
    async def tell(story):
        story.child.publish("a.b", (1234, 2 | 4))
        await until(lambda: story.link.inbox[1:])
        sent = story.link.inbox[1]
        assert (sent.type, sent.topic, sent.sequence) == (EVENT, "a.b", 0)
        assert story.child.events == []

    run(tell)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_parent_that_has_the_key_of_another_rank_is_none(monkeypatch, rank):
    dial = registry.dial

    async def proving(uri, options):
        link = await dial(uri, options)
        link.peer = link.peer._replace(key="its key", rank=rank)
        return link

    async def main():
        story = Story()
        if rank == 0:
            await story.start()
            assert story.child.overlay.joined()
        else:
            with pytest.raises(LinkRefused, match="the key of rank 2, expected that of rank 0"):
                await story.start()
        await story.child.overlay.stop()
        await story.listener.stop()

    monkeypatch.setattr(registry, "dial", proving)
    asyncio.run(main())


@for_each(
    ("errnum", "text"),
    [(errno.EINVAL, "client (0.88.0) version mismatched with server (0.99.0)"), (errno.EPERM, "")],
)
def test_a_refusal_is_final_and_says_why(errnum, text):
    class Refusing(PlayedParent):
        def received(self, link, messages):
            self.say(hello.refuse(messages[0], errnum, text))

    async def main():
        story = Story()
        await registry.listen(story.uri, lambda link: Refusing(link, story), Options())
        with pytest.raises(LinkRefused) as raised:
            await story.child.overlay.start()
        assert raised.value.errno == errnum
        assert text in str(raised.value)
        assert not story.child.overlay.joined()
        await story.child.overlay.stop()

    asyncio.run(main())


def test_what_comes_before_the_answer_is_dropped_and_what_comes_behind_it_is_served():
    class Early(PlayedParent):
        def received(self, link, messages):
            if hello.is_hello(messages[0]):
                self.link.send(event("early", sequence=1))
                self.link.send(hello.admit(messages[0], PARENT, HeadgateHello()))
                self.link.send(event("late", sequence=2))
                self.link.flush()

    async def main():
        story = Story(goodbye_timeout_s=0.02)
        await registry.listen(story.uri, lambda link: Early(link, story), Options())
        await story.child.overlay.start()
        await until(lambda: story.child.events)
        assert [m.topic for m in story.child.events] == ["late"]
        await story.child.overlay.stop()

    asyncio.run(main())


def test_a_parent_that_comes_late_is_joined():
    async def main():
        story = Story()
        starting = asyncio.get_running_loop().create_task(story.child.overlay.start())
        await asyncio.sleep(0.05)
        assert not starting.done()
        await story.listen()
        await asyncio.wait_for(starting, 10)
        assert story.child.overlay.joined()
        await story.child.overlay.stop()

    asyncio.run(main())


def test_a_parent_that_does_not_answer_is_dialled_again_with_a_new_uuid():
    async def main():
        story = Story(hello_timeout_s=0.02)
        story.admits = False
        await story.listen()
        starting = asyncio.get_running_loop().create_task(story.child.overlay.start())
        await until(lambda: len(story.links) >= 2 and story.links[1].inbox)
        story.admits = True
        await asyncio.wait_for(starting, 10)
        uuids = [decode_json(link.inbox[0].payload)["uuid"] for link in story.links]
        assert len(set(uuids)) == len(uuids)
        assert uuids[-1] == story.child.broker.router.uuid
        await story.child.overlay.stop()

    asyncio.run(main())


def test_a_parent_that_sends_us_away_is_asked_again():
    async def main():
        story = Story()
        story.admits = False
        await story.listen()
        starting = asyncio.get_running_loop().create_task(story.child.overlay.start())
        await until(lambda: story.links and story.links[0].inbox)
        story.links[0].say(control.disconnect())
        story.admits = True
        await asyncio.wait_for(starting, 10)
        await story.child.overlay.stop()

    asyncio.run(main())


def test_a_heartbeat_is_sent_after_silence_only():
    async def tell(story):
        await until(lambda: len(story.controls(control.HEARTBEAT)) >= 2)
        heartbeat = story.controls(control.HEARTBEAT)[0]
        assert (heartbeat.aux2, heartbeat.flags, heartbeat.topic) == (0, 8, None)
        assert story.child.broker.router.counters.sent()["control"] >= 2

    run(tell, torpid_min_s=0.03)


def test_whoever_has_just_spoken_sends_no_heartbeat():
    async def tell(story):
        now = time.monotonic()
        pulse = story.child.overlay._parent.pulse
        story.link.ask_down("probe.ping")
        await until(lambda: story.link.inbox[1:])
        for seconds in (1000, 1004, 1006):
            pulse(now + seconds, 0.0)
        story.child.broker.flusher.flush()
        await until(lambda: story.controls(control.HEARTBEAT))
        assert len(story.controls(control.HEARTBEAT)) == 1

    run(tell)


def test_goodbye_is_a_request_the_parent_answers():
    async def main():
        story = Story()
        await story.start()
        await story.child.overlay.stop()
        goodbye = story.link.inbox[-1]
        assert (goodbye.type, goodbye.topic, goodbye.rolemask & 1) == (REQUEST, "overlay.goodbye", 1)
        assert goodbye.flags & UPSTREAM
        await until(lambda: story.link.ended)

    asyncio.run(main())


def test_a_parent_that_does_not_answer_goodbye_is_left_all_the_same():
    async def main():
        story = Story(goodbye_timeout_s=0.02)
        await story.start()
        story.link.link.pause()
        await asyncio.wait_for(story.child.overlay.stop(), 5)

    asyncio.run(main())


def test_stopping_gives_up_joining():
    async def main():
        story = Story()
        starting = asyncio.get_running_loop().create_task(story.child.overlay.start())
        await asyncio.sleep(0.02)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await story.child.overlay.stop()

    asyncio.run(main())
