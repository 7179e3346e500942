"""A parent is lost and joined again: a new incarnation, children that wait, numbers that were missed."""

import asyncio
import errno
from dataclasses import replace
from typing import ClassVar

import pytest

from broker.errors import ConfigError, LinkBroken, LinkRefused
from broker.node.overlay import control, hello, parent
from broker.node.overlay.hello import HeadgateHello
from broker.routing.topology import Topology
from broker.transport import registry
from broker.wire.message import (
    NORESPONSE,
    STREAMING,
    event,
    request,
    response,
)
from broker.wire.parts import encode_part
from broker.wire.payload import any_text, decode_json
from tests.tables import for_each
from tests.unit.node.overlay.trees import OWNER, QUICK, Client, Rank, until
from tests.unit.node.overlay.upward import PARENT, Story, run


class Noted(parent.Backoff):
    """Notes the bounds and waits for none."""

    bounds: ClassVar[list[float]] = []

    def after(self, lived_s=0.0, longest_s=None):
        self._spread = False
        self.bounds.append(super().after(lived_s))
        return 0.0


def lose_by_closing(story):
    story.link.link.close()


def lose_by_disconnect(story):
    story.link.say(control.disconnect())


@for_each("lose", [lose_by_closing, lose_by_disconnect])
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


def test_a_parent_that_is_lost_again_at_once_is_joined_less_and_less_often(monkeypatch):
    """As by two processes of one rank, each of which takes the other one's place."""
    monkeypatch.setattr(parent, "Backoff", Noted)
    Noted.bounds.clear()

    async def tell(story):
        for number in range(5):
            lose_by_closing(story)
            await until(lambda: len(story.links) == 2 + number and story.child.overlay.joined())  # noqa: B023
        first_s = story.child.overlay._parent._config.backoff_s
        assert Noted.bounds == [first_s * 2**number for number in range(5)]

    run(tell, backoff_s=0.1, backoff_max_s=10.0)


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


def test_a_file_that_cannot_be_read_when_joining_again_is_tried_again(monkeypatch):
    """Somebody is replacing it just now: no reason to give the broker up."""
    dial, tries = registry.dial, []

    async def half(uri, options):
        tries.append(uri)
        if len(tries) <= 2:
            raise ConfigError("node1.pem: No such file or directory")
        return await dial(uri, options)

    async def tell(story):
        monkeypatch.setattr(registry, "dial", half)
        lose_by_closing(story)
        await until(lambda: len(story.links) == 2 and story.child.overlay.joined())
        assert len(tries) == 3
        assert [told[0] for told in story.child.told] == ["joined", "parent_lost", "joined"]

    run(tell)


def test_what_the_first_attempts_fail_of_is_said_at_once_and_each_reason_once(monkeypatch, caplog):
    caplog.set_level("INFO", "headgate")
    dial = registry.dial

    async def patient(uri, options):
        for reason in ("cannot resolve 'node0'", "connection refused", "cannot resolve 'node0'"):
            options.failing(LinkBroken(reason))
        return await dial(uri, options)

    async def tell(story):
        monkeypatch.setattr(registry, "dial", patient)
        for links in (2, 3):
            lose_by_closing(story)
            await until(lambda: len(story.links) == links and story.child.overlay.joined())  # noqa: B023
        said = [record.getMessage() for record in caplog.records if "yet: " in record.getMessage()]
        assert [line.partition("yet: ")[2] for line in said] == 2 * [
            "cannot resolve 'node0'",
            "connection refused",
        ]

    run(tell)


def test_the_log_shows_no_secret_of_the_parents_address(monkeypatch, caplog):
    caplog.set_level("INFO", "headgate")
    uri, left = "mqtt://me:hush@h/t?token=hush", [LinkBroken, LinkRefused]

    async def dial(uri, options):
        options.failing(LinkBroken(f"{uri}: refused"))
        raise left.pop(0)(f"cannot reach {uri}")

    async def main():
        monkeypatch.setattr(registry, "dial", dial)
        with pytest.raises(LinkRefused):
            await Rank(1, Topology(2), replace(QUICK, parent_uri=uri)).overlay.start()

    asyncio.run(main())
    said = [each.getMessage() for each in caplog.records if "cannot join the parent" in each.getMessage()]
    assert len(said) == 2
    assert all("mqtt://h/t?token=***" in line and "hush" not in line for line in said)


def test_a_file_that_cannot_be_read_at_the_start_is_an_error(monkeypatch):
    async def unread(uri, options):
        raise ConfigError("node1.pem: No such file or directory")

    async def tell(story):
        await story.child.overlay.stop()
        monkeypatch.setattr(registry, "dial", unread)
        with pytest.raises(ConfigError, match=r"node1\.pem"):
            await Story().start()

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


def test_what_a_new_rank_0_said_before_we_came_is_missing():
    async def tell(story):
        story.link.say(event("a", sequence=9))
        await until(lambda: len(story.child.events) == 1)
        story.uuid = PARENT.replace("e", "a")
        lose_by_closing(story)
        await until(lambda: len(story.links) == 2 and story.child.overlay.joined())
        story.link.say(event("b", sequence=4))
        story.link.say(event("c", sequence=5))
        await until(lambda: len(story.child.events) == 3)
        assert (story.child.overlay.event_gaps, story.child.overlay.events_missed) == (1, 3)

    run(tell)


def test_the_epoch_of_rank_0_is_passed_on_by_parents_that_know_it():
    async def tell(story):
        assert story.child.overlay.epoch == "0" * 36

    async def main():
        story = Story()
        story.ours = HeadgateHello(True, True, "0" * 36)
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
        starting, link = await story.start_between()
        early = Client(link)
        await asyncio.sleep(0.01)
        link.send(request("probe.ping", matchtag=5))
        link.flush()
        await asyncio.sleep(0.01)
        assert early.inbox == []
        story.admit()
        await starting
        await until(lambda: len(early.inbox) == 2)
        assert [(m.topic, m.errnum) for m in early.inbox] == [("overlay.hello", 0), ("probe.ping", 0)]
        await story.child.overlay.stop()

    asyncio.run(main())


def test_a_waiting_child_that_goes_away_is_forgotten():
    async def main():
        story = Story()
        starting, link = await story.start_between()
        assert story.child.overlay._children._greetings
        link.close()
        await until(lambda: not story.child.overlay._children._greetings)
        story.admit()
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
            lambda: story.child.broker.router.counters.drops.get("response from a child without our hop")
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
