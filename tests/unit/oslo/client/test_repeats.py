"""What is sent again after a lost connection: who keeps it, and how its receiver knows that it has had it."""

import random

from broker.identity import Credentials
from broker.oslo.client.inbox import ClientInbox, ReceivedMessage
from broker.oslo.client.listeners import ANSWERS_BYTES, ANSWERS_MAX, BEGUN_BYTES, BEGUN_MAX, ReplyCache
from broker.oslo.client.resend import (
    SENDERS_MAX,
    SENT_BYTES,
    SENT_MSGS,
    SENT_S,
    WINDOW,
    Deduplicator,
    MessageIds,
    Parcel,
    ResendBuffer,
)
from broker.oslo.frames import Flag, Kind, decode, encode, not_repeated, repeated, stamped
from broker.oslo.names import Reason
from broker.oslo.reactor import Reactor
from tests.unit.oslo.client.desk import listeners_of

OWNER = listeners_of(Reactor())
ALICE, BOB = Credentials(1, 2), Credentials(2, 2)


def head(number, who=ALICE):
    return stamped(encode(Kind.CALL, "x", "t", id=number), who)


def parcel(link, size=1):
    made = Parcel(size)
    made.link = link
    return made


def test_the_flag_and_nothing_else():
    before = encode(Kind.CAST, "x", "t", flags=int(Flag.CONFIRM), id=MessageIds().next())
    after = repeated(before)
    assert decode(after).flags == Flag.CONFIRM | Flag.REPEATED
    assert decode(after)._replace(flags=int(Flag.CONFIRM)) == decode(before)
    assert not_repeated(after) == before
    assert not_repeated(before) is before


def test_what_was_added_is_known_in_whatever_order_it_came():
    ids, seen = MessageIds(), Deduplicator()
    heads = [head(ids.next()) for _ in range(WINDOW)]
    random.Random(1).shuffle(heads)
    half = WINDOW // 2
    for each in heads[:half]:
        assert each not in seen
        seen.add(each)
    assert all(each in seen for each in heads[:half])
    assert not any(each in seen for each in heads[half:])


def test_what_is_older_than_the_window_counts_as_seen():
    ids, seen = MessageIds(), Deduplicator()
    old, middle = head(ids.next()), head(ids.next())
    for _ in range(WINDOW - 1):
        last = head(ids.next())
    seen.add(last)
    assert old in seen
    assert middle not in seen
    for _ in range(10 * WINDOW):
        last = head(ids.next())
    seen.add(last)
    assert middle in seen


def test_senders_are_told_apart_and_nobody_speaks_for_another():
    one, two, seen = MessageIds(), MessageIds(), Deduplicator()
    number = one.next()
    seen.add(head(number))
    assert head(two.next()) not in seen
    assert head(number, BOB) not in seen
    assert head(number) in seen


def test_senders_are_bounded():
    seen = Deduplicator()
    heads = [head(MessageIds().next()) for _ in range(SENDERS_MAX + 1)]
    for each in heads:
        seen.add(each)
    assert len(seen) <= SENDERS_MAX
    assert heads[0] not in seen
    assert heads[-1] in seen


def test_who_goes_on_sending_is_remembered_however_many_others_come():
    busy, seen = MessageIds(), Deduplicator()
    first = head(busy.next())
    seen.add(first)
    for number in range(3 * SENDERS_MAX):
        seen.add(head(MessageIds().next()))
        if number % (SENDERS_MAX // 4) == 0:
            seen.add(head(busy.next()))
    assert first in seen
    assert len(seen) <= SENDERS_MAX


def test_a_number_from_nowhere_costs_no_memory():
    seen = Deduplicator()
    seen.add(head(bytes(16)))
    seen.add(head(bytes(8) + b"\xff" * 8))
    assert max(mask.bit_length() for _newest, mask in seen._lately.values()) <= WINDOW


def test_less_is_kept_than_a_listener_tells_apart():
    assert SENT_MSGS < WINDOW
    now = [0.0]
    sent, link = ResendBuffer(lambda: now[0]), object()
    for _ in range(3 * SENT_MSGS):
        sent.note_sent(parcel(link))
    assert len(sent) == SENT_MSGS


def test_what_is_kept_is_bounded_in_bytes_and_time():
    now = [0.0]
    sent, link = ResendBuffer(lambda: now[0]), object()
    for _ in range(5):
        sent.note_sent(parcel(link, SENT_BYTES // 2))
    assert (len(sent), sent.bytes) == (2, 2 * (SENT_BYTES // 2))
    sent.note_sent(parcel(link, 2 * SENT_BYTES))
    assert len(sent) == 1, "the last one, however large"
    late = parcel(link)
    now[0] = SENT_S + 1
    sent.note_sent(late)
    assert sent.take(link) == [late]
    assert (len(sent), sent.bytes) == (0, 0)
    sent.note_sent(parcel(link))
    now[0] += SENT_S + 1
    assert sent.take(link) == [], "too old to be wanted"


def test_each_connection_has_its_own():
    sent, one, two = ResendBuffer(lambda: 0.0), object(), object()
    messages = [parcel((one, two)[number % 2]) for number in range(6)]
    for message in messages:
        sent.note_sent(message)
    assert sent.take(one) == messages[::2]
    assert sent.take(one) == []
    assert sent.take(two) == messages[1::2]


def call(number, route=b"old", who=ALICE, body=b""):
    inbox = ClientInbox(lambda *_: True, OWNER, "l" * 24, [], None, (10, 10), rpc=True, body_max=10)
    whole = head(number, who)
    return ReceivedMessage(inbox, decode(whole), whole, route, body, 0.0)


class Line:
    """What was sent to the proxy."""

    def __init__(self):
        self.sent = []
        self.replies = ReplyCache(self.take)

    def take(self, frames):
        self.sent.append((decode(frames[0]), *frames[1:]))
        return True

    def again(self, asked, route=b"new"):
        whole = repeated(asked.head)
        assert self.replies.answer_again(whole, decode(whole), route)


def test_a_call_that_is_worked_on_is_answered_where_its_client_is_now():
    line, ids = Line(), MessageIds()
    asked = call(ids.next())
    line.replies.begin(asked)
    line.again(asked)
    assert line.sent == []
    line.replies.send(Kind.BEAT, asked, b"")
    line.replies.send(Kind.REPLY, asked, b"done")
    assert [(envelope.kind, route, body) for envelope, route, body in line.sent] == [
        (Kind.BEAT, b"new", b""),
        (Kind.REPLY, b"new", b"done"),
    ]


def test_a_call_that_was_answered_is_answered_once_more():
    line, asked = Line(), call(MessageIds().next())
    line.replies.begin(asked)
    line.replies.send(Kind.REPLY, asked, b"done")
    line.again(asked)
    assert [(envelope.kind, route, body) for envelope, route, body in line.sent] == [
        (Kind.REPLY, b"old", b"done"),
        (Kind.REPLY, b"new", b"done"),
    ]


def test_nobody_gets_the_answer_of_somebody_else():
    line, number = Line(), MessageIds().next()
    asked = call(number)
    line.replies.begin(asked)
    line.replies.send(Kind.REPLY, asked, b"secret")
    line.again(call(number, who=BOB))
    envelope, route, body = line.sent[-1]
    assert (envelope.kind, envelope.reason, route, body) == (Kind.REFUSED, Reason.ANSWERED, b"new", b"")


def test_answers_are_bounded_and_what_is_forgotten_is_said():
    line, ids = Line(), MessageIds()
    calls = [call(ids.next()) for _ in range(ANSWERS_MAX + 1)]
    for each in calls:
        line.replies.send(Kind.REPLY, each, b"1")
    line.again(calls[0])
    assert (line.sent[-1][0].kind, line.sent[-1][0].reason) == (Kind.REFUSED, Reason.ANSWERED)
    line.again(calls[1])
    assert line.sent[-1][0].kind == Kind.REPLY


def test_calls_that_nobody_answers_are_bounded():
    line, ids = Line(), MessageIds()
    calls = [call(ids.next()) for _ in range(BEGUN_MAX + 1)]
    for each in calls:
        line.replies.begin(each)
    line.again(calls[0])
    assert line.sent[-1][0].reason == Reason.ANSWERED
    line.again(calls[1])
    assert calls[1].route == b"new"
    line.replies.begin(call(ids.next(), body=bytes(BEGUN_BYTES + 1)))
    assert len(line.replies._begun) == 1, "the latest, however large"


def test_a_client_that_uses_one_id_again_and_again_costs_others_nothing():
    line, ids = Line(), MessageIds()
    number, size = ids.next(), BEGUN_BYTES // 4
    before = [call(ids.next()) for _ in range(3)]
    for each in before:
        line.replies.begin(each)
    for _ in range(8):  # never answered: its client has given up each time
        line.replies.begin(call(number, body=bytes(size)))
    line.again(before[0])
    assert (line.sent, before[0].route) == ([], b"new")
    line.replies.send(Kind.REPLY, before[0], b"1")
    for _ in range(8):
        line.replies.send(Kind.REPLY, call(number), bytes(ANSWERS_BYTES // 4))
    line.again(before[0])
    assert line.sent[-1][0].kind == Kind.REPLY
