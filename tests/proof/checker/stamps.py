"""C9: who was allowed to send, serve and receive what. C0: connections end by their party's will, or by a fault."""

from __future__ import annotations

from typing import Final

from tests.proof.checker.entries import LATE_S, Call, Conn, Event, Held, Line
from tests.proof.checker.story import Story
from tests.proof.checker.trouble import FOREVER
from tests.proof.checker.verdict import Verdict

OWNER: Final = 1
LOCAL: Final = 4
UNKNOWN: Final = 0xFFFFFFFF


def judge(story: Story, verdict: Verdict) -> None:
    """Hold every delivery against C9, every end of a connection against C0."""
    for call in story.calls.values():
        for line, provider in call.serves:
            _served(call, line, provider, verdict)
    for event in story.events.values():
        _refused(event, verdict)
        for line, subscriber in event.seen:
            _seen(event, line, subscriber, verdict)
    for conn in story.conns.values():
        _ended(story, conn, verdict)


def _served(call: Call, line: Line, provider: Conn, verdict: Verdict) -> None:
    verdict.messages["requests served"] += 1
    if call.expect:
        verdict.add("C9", f"{call.id} to {call.to} was served, policy forbids it", line["t"], call.id)
    held = [held for held in provider.provides if held.name == call.to]
    if not any(one.begin - LATE_S <= line["t"] for one in held):
        what = f"{call.id} to {call.to} was delivered to {provider.name}, which does not provide it"
        verdict.add("C9", what, line["t"], call.id)
    if line.get("userid") is not None:
        verdict.judged["stamps"] += 1
        _stamp(call, line, provider, verdict)


def _stamp(call: Call, line: Line, provider: Conn, verdict: Verdict) -> None:
    caller = call.conn
    userid, roles = line["userid"], line["roles"]
    if userid != caller.userid:
        what = f"{call.id} of userid {caller.userid} was stamped {userid}"
        verdict.add("C9", what, line["t"], call.id)
    if roles & ~caller.roles or roles == 0:
        what = f"{call.id} of roles {caller.roles:#x} was stamped {roles:#x}"
        verdict.add("C9", what, line["t"], call.id)
    if roles & LOCAL and provider.at != caller.at:
        what = f"{call.id} crossed from {caller.at} to {provider.at} and is still stamped LOCAL"
        verdict.add("C9", what, line["t"], call.id)


def _refused(event: Event, verdict: Verdict) -> None:
    """What policy forbids to publish has no number and is seen by nobody."""
    if event.expect and (event.acknowledged or event.seen):
        verdict.add("C9", f"{event.id} was published, policy forbids it", event.t, event.id)


def _seen(event: Event, line: Line, subscriber: Conn, verdict: Verdict) -> None:
    """One delivery of an event."""
    verdict.judged["deliveries of events"] += 1
    sender = event.conn
    if line["topic"] != event.topic:
        what = f"{event.id} was published as {event.topic} and came as {line['topic']}"
        verdict.add("C9", what, line["t"], event.id)
    if line.get("from_userid", -1) not in (-1, sender.userid):
        what = f"{event.id} of userid {sender.userid} came stamped {line['from_userid']}"
        verdict.add("C9", what, line["t"], event.id)
    if not may_see(event, subscriber):
        what = f"private {event.id} of userid {sender.userid} reached userid {subscriber.userid}"
        verdict.add("C9", what, line["t"], event.id)
    if not any(held.begin - LATE_S <= line["t"] and asked(held, event) for held in subscriber.subscriptions):
        what = f"{event.topic} ({event.id}) reached {subscriber.name}, which did not subscribe to it"
        verdict.add("C9", what, line["t"], event.id)


def may_see(event: Event, subscriber: Conn) -> bool:
    """A private event is for the owner and for its sender's userid."""
    if not event.private or subscriber.roles & OWNER:
        return True
    return subscriber.userid == event.conn.userid != UNKNOWN


def asked(held: Held, event: Event) -> bool:
    """Whether a subscription is for an event's topic, and policy does not take it out."""
    return event.topic.startswith(held.name) and not event.topic.startswith(held.but)


def _ended(story: Story, conn: Conn, verdict: Verdict) -> None:
    """C0. A party may be late in writing that its connection is gone."""
    if conn.end == FOREVER or conn.why in ("closed", "killed"):
        return
    if not story.trouble.touched(conn.way, conn.end - LATE_S, conn.end):
        what = f"{conn.name} at {conn.at} ended by itself: {conn.why}"
        verdict.add("C0", what, conn.end, conn.name)
