"""The child's side, with the parent played by the test."""

import asyncio
import errno
import time
from dataclasses import replace

import pytest

from broker.errors import LinkRefused
from broker.node.overlay import control, hello
from broker.node.overlay.hello import Ours
from broker.node.overlay.status import Status
from broker.routing.topology import Topology
from broker.transport import registry
from broker.transport.link import Options
from broker.wire.message import (
    CONTROL,
    EVENT,
    NORESPONSE,
    REQUEST,
    STREAMING,
    UPSTREAM,
    event,
    request,
    response,
)
from broker.wire.parts import encode_part
from broker.wire.payload import any_text, decode_json
from tests.unit.node.overlay.trees import OWNER, QUICK, Client, Rank, place, until

PARENT = "ef3b72fa-e999-463f-b9d9-bf6763b37319"


class Story:
    """Rank 1 of four (rank 3 is below it), and the parent's end of each connection it makes."""

    def __init__(self, size=4, **config):
        self.uri = place()
        self.links: list[Client] = []
        listen = place()
        self.child = Rank(1, Topology(size), replace(QUICK, parent_uri=self.uri, listen_uri=listen, **config))
        self.admits = True
        self.ours = Ours()
        self.uuid = PARENT

    async def listen(self):
        self.listener = await registry.listen(
            self.uri, lambda link: self.links.append(_Parent(link, self)), Options()
        )

    async def start(self):
        await self.listen()
        async with asyncio.timeout(10):
            await self.child.overlay.start()

    @property
    def link(self):
        return self.links[-1]

    def controls(self, kind):
        return [m for m in self.link.inbox if m.type == CONTROL and m.aux1 == kind]


class _Parent(Client):
    def __init__(self, link, story):
        self.story = story
        super().__init__(link)

    def received(self, link, messages):
        super().received(link, messages)
        for message in messages:
            if hello.is_hello(message) and self.story.admits:
                self.say(hello.admit(message, self.story.uuid, self.story.ours))
            elif message.topic == "overlay.goodbye":
                self.say(response(message))

    def say(self, message):
        self.link.send(message)
        self.link.flush()

    def ask_down(self, topic, tag=1, flags=0):
        """A request of a client above us to rank 1, as a deployed parent sends it."""
        message = request(topic, nodeid=1, matchtag=tag, flags=flags, userid=OWNER, rolemask=1 | 4)
        message.push_route(b"c" * 36)
        message.push_route(PARENT.encode())
        self.say(message)


def run(tell, **config):
    async def main():
        story = Story(**config)
        await story.start()
        await tell(story)
        await story.child.overlay.stop()
        await story.listener.stop()

    asyncio.run(main())


def test_hello_says_who_we_are():
    async def tell(story):
        told = decode_json(story.link.inbox[0].payload)
        assert told.pop("headgate")["batch"] == 1
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


@pytest.mark.parametrize(
    ("errnum", "text"),
    [(errno.EINVAL, "client (0.88.0) version mismatched with server (0.99.0)"), (errno.EPERM, "")],
)
def test_a_refusal_is_final_and_says_why(errnum, text):
    class Refusing(_Parent):
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
    class Early(_Parent):
        def received(self, link, messages):
            if hello.is_hello(messages[0]):
                self.link.send(event("early", sequence=1))
                self.link.send(hello.admit(messages[0], PARENT, Ours()))
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
        await until(lambda: len(story.links) == 2 and story.links[1].inbox)
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


def lose_by_closing(story):
    story.link.link.close()


def lose_by_disconnect(story):
    story.link.say(control.disconnect())


@pytest.mark.parametrize("lose", [lose_by_closing, lose_by_disconnect])
def test_a_lost_parent_is_joined_again_as_a_new_incarnation(lose):
    async def tell(story):
        before = story.child.broker.router.uuid
        call = asyncio.get_running_loop().create_task(story.child.call(0))
        await until(lambda: story.link.inbox[1:])
        lose(story)
        answer = await call
        assert (answer.errnum, any_text(answer.payload)) == (errno.EHOSTUNREACH, "overlay disconnect")
        await until(lambda: len(story.links) == 2 and story.child.overlay.joined())
        assert [told[0] for told in story.child.told] == ["joined", "parent_lost", "joined"]
        now = story.child.broker.router.uuid
        assert now != before
        assert decode_json(story.link.inbox[0].payload)["uuid"] == now
        story.link.ask_down("probe.ping")
        await until(lambda: story.link.inbox[1:])
        assert story.link.inbox[1].routes[0] == PARENT.encode()

    run(tell)


def test_while_no_parent_is_there_upward_calls_fail_at_once_and_local_ones_work():
    async def tell(story):
        client = story.child.client()
        story.admits = False
        lose_by_closing(story)
        await until(lambda: not story.child.overlay.joined())
        assert (await client.call(nodeid=0, tag=1)).errnum == errno.EHOSTUNREACH
        assert (await client.call("nobody.there", tag=2)).errnum == errno.EHOSTUNREACH
        assert (await client.call("probe.ping", tag=3)).errnum == 0
        story.admits = True
        await until(story.child.overlay.joined)
        assert client.ended is None

    run(tell, hello_timeout_s=0.05)


def test_exit_is_asked_for_where_the_setting_says_so():
    async def tell(story):
        lose_by_closing(story)
        await until(
            lambda: ("must_exit", "lost the parent: the other side closed the link") in story.child.told
        )
        await asyncio.sleep(0.05)
        assert len(story.links) == 1

    run(tell, on_parent_loss="exit")


def test_a_refusal_when_joining_again_asks_to_exit():
    async def tell(story):
        story.admits = False
        lose_by_closing(story)
        await until(lambda: len(story.links) == 2 and story.link.inbox)
        story.link.say(hello.refuse(story.link.inbox[0], errno.EINVAL, "no more"))
        await until(lambda: story.child.told[-1][0] == "must_exit")
        assert "no more" in story.child.told[-1][1]

    run(tell)


def test_events_missed_while_away_are_counted_at_the_first_new_one():
    async def tell(story):
        story.link.say(event("a", sequence=5))
        await until(lambda: len(story.child.events) == 1)
        lose_by_closing(story)
        await until(lambda: len(story.links) == 2 and story.child.overlay.joined())
        story.link.say(event("b", sequence=9))
        await until(lambda: len(story.child.events) == 2)
        assert (story.child.overlay.event_gaps, story.child.overlay.events_missed) == (1, 3)

    run(tell)


def test_a_new_rank_0_numbers_anew_even_where_it_hits_the_old_number():
    async def tell(story):
        story.link.say(event("a", sequence=1))
        await until(lambda: len(story.child.events) == 1)
        story.uuid = PARENT.replace("e", "a")
        lose_by_closing(story)
        await until(lambda: len(story.links) == 2 and story.child.overlay.joined())
        assert story.child.overlay.epoch == story.uuid
        story.link.say(event("b", sequence=1))
        await until(lambda: len(story.child.events) == 2)
        assert story.child.overlay.event_gaps == 0

    run(tell)


def test_the_epoch_of_rank_0_is_passed_on_by_parents_that_know_it():
    async def tell(story):
        assert story.child.overlay.epoch == "0" * 36

    async def main():
        story = Story()
        story.ours = Ours(True, True, "0" * 36)
        await story.start()
        await tell(story)
        await story.child.overlay.stop()

    asyncio.run(main())


def test_children_follow_us_to_the_new_incarnation_and_wait_until_we_are_back():
    async def main():
        story = Story(hello_timeout_s=0.1)
        grandchild = Rank(3, Topology(4), replace(QUICK, parent_uri=story.child.overlay._config.listen_uri))
        await story.start()
        await grandchild.overlay.start()
        await until(lambda: story.child.overlay.subtree_status() == "full")
        await until(lambda: story.controls(control.STATUS))
        assert story.controls(control.STATUS)[0].aux2 == 1
        assert grandchild.overlay.parent_uuid() == story.child.broker.router.uuid
        story.admits = False
        lose_by_closing(story)
        await until(lambda: ("parent_lost", "the parent told us to leave") in grandchild.told)
        await asyncio.sleep(0.05)
        assert not grandchild.overlay.joined()
        story.admits = True
        await until(grandchild.overlay.joined)
        assert grandchild.overlay.parent_uuid() == story.child.broker.router.uuid
        call = asyncio.get_running_loop().create_task(grandchild.call(0))
        await until(lambda: any(m.topic == "probe.ping" for m in story.link.inbox))
        sent = next(m for m in story.link.inbox if m.topic == "probe.ping")
        story.link.say(response(sent, b"top", userid=OWNER, rolemask=1))
        assert (await call).payload == b"top"
        await grandchild.overlay.stop()
        await story.child.overlay.stop()

    asyncio.run(main())


def test_what_a_waiting_child_says_behind_its_hello_is_served_when_we_are_back():
    """A real broker asks its parent for its state without waiting for the answer to hello."""

    async def main():
        story = Story()
        story.admits = False
        await story.listen()
        starting = asyncio.get_running_loop().create_task(story.child.overlay.start())
        await until(lambda: story.links and story.links[0].inbox)
        link = await registry.dial(story.child.overlay.contact_uri, Options())
        early = Client(link)
        link.send(hello.encode(hello.Hello(3, 0x5800, "3" * 36, Status.FULL)))
        link.flush()
        await asyncio.sleep(0.01)
        link.send(request("probe.ping", matchtag=5))
        link.flush()
        await asyncio.sleep(0.01)
        assert early.inbox == []
        story.link.say(hello.admit(story.link.inbox[0], PARENT, Ours()))
        await starting
        await until(lambda: len(early.inbox) == 2)
        assert [(m.topic, m.errnum) for m in early.inbox] == [("overlay.hello", 0), ("probe.ping", 0)]
        await story.child.overlay.stop()

    asyncio.run(main())


def test_a_waiting_child_that_goes_away_is_forgotten():
    async def main():
        story = Story()
        story.admits = False
        await story.listen()
        starting = asyncio.get_running_loop().create_task(story.child.overlay.start())
        await until(lambda: story.links and story.links[0].inbox)
        link = await registry.dial(story.child.overlay.contact_uri, Options())
        link.send(hello.encode(hello.Hello(3, 0x5800, "3" * 36, Status.FULL)))
        link.close()
        await until(lambda: not story.child.overlay._children._greetings)
        story.link.say(hello.admit(story.link.inbox[0], PARENT, Ours()))
        await starting
        assert story.child.overlay.child_health()[0]["status"] == "offline"
        await story.child.overlay.stop()

    asyncio.run(main())


def test_responses_that_name_a_former_incarnation_are_dropped():
    async def main():
        story = Story()
        grandchild = Rank(3, Topology(4), replace(QUICK, parent_uri=story.child.overlay._config.listen_uri))
        await story.start()
        await grandchild.overlay.start()
        former = story.child.broker.router.uuid
        lose_by_closing(story)
        await until(lambda: grandchild.overlay.parent_uuid() not in ("", former))
        late = response(request("probe.ping", matchtag=1), userid=OWNER, rolemask=1)
        late.front = encode_part(former.encode()) + encode_part(story.child.broker.own.uuid.encode()) + b"\0"
        grandchild.overlay._parent.port.send(late)
        await until(
            lambda: story.child.broker.router.tally.drops.get("response from a child without our hop")
        )
        await grandchild.overlay.stop()
        await story.child.overlay.stop()

    asyncio.run(main())


def test_streams_through_a_lost_parent_are_ended_at_their_provider():
    async def tell(story):
        story.link.ask_down("probe.watch", flags=STREAMING)
        await until(lambda: story.child.requests)
        lose_by_closing(story)
        await until(lambda: len(story.child.requests) == 2)
        notice = story.child.requests[1]
        assert (notice.topic, notice.flags & NORESPONSE) == ("probe.disconnect", NORESPONSE)
        assert notice.front == story.child.requests[0].front

    run(tell)


def test_a_heartbeat_is_sent_after_silence_only():
    async def tell(story):
        await until(lambda: len(story.controls(control.HEARTBEAT)) == 2)
        heartbeat = story.controls(control.HEARTBEAT)[0]
        assert (heartbeat.aux2, heartbeat.flags, heartbeat.topic) == (0, 8, None)

    run(tell, torpid_min_s=0.03)


def test_whoever_has_just_spoken_sends_no_heartbeat():
    async def tell(story):
        now = time.monotonic()
        pulse = story.child.overlay._parent.pulse
        story.link.ask_down("probe.ping")
        await until(lambda: story.link.inbox[1:])
        for seconds in (1000, 1004, 1006):
            pulse(now + seconds)
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
