"""Whose link ends when too much waits, and whose does not."""

from broker.errors import LinkBroken
from broker.transport.budget import Budget
from broker.transport.outbox import (
    AGAIN_MSGS,
    LARGE_BYTES,
    WINDOW_BYTES,
    WINDOW_MSGS,
    InFlight,
    Outbox,
    OutboxLimits,
)
from broker.wire.message import EVENT, RESPONSE, event
from tests.tables import for_each

MIB = 1 << 20


class Owner:
    """A link whose transport takes nothing unless it is told."""

    def __init__(self, budget=None, user=None, user_bytes=0, **limits):
        self.ended = None
        self.said = []
        self.outbox = Outbox(self, OutboxLimits(**limits), budget or Budget())
        if user is not None:
            self.outbox.charge_to(user, user_bytes)

    def choked(self, choked):
        self.said.append(choked)

    def abort(self, error):
        assert self.ended is None
        self.ended = error
        self.outbox.discard()

    def enqueue(self, size, kind=RESPONSE, form=None):
        self.outbox.enqueue(bytes(size) if form is None else form, size, kind)
        return self.ended is None


def alive(*owners):
    return [owner.ended is None for owner in owners]


# -- one link --------------------------------------------------------------------------------------


@for_each("in_front", [0, 1, 64 * MIB])
def test_a_message_beyond_the_cap_waits_whatever_is_in_front(in_front):
    owner = Owner()
    if in_front:
        owner.enqueue(in_front)
    assert owner.enqueue(70 * MIB)
    assert owner.enqueue(64 * MIB - in_front)
    assert not owner.enqueue(1), "one message, and no second"
    assert "the cap is 67108864 and one message" in str(owner.ended)


@for_each("kind", [RESPONSE, EVENT])
def test_when_what_is_left_of_it_is_within_the_cap_the_next_one_may_be_as_large(kind):
    """A caller may send its second blob as soon as the first is nearly gone: low water comes before the last byte."""
    owner = Owner(cap_bytes=100, event_bytes=100)
    owner.enqueue(500, kind)
    owner.enqueue(60, kind)
    owner.outbox.consume(459)
    assert owner.outbox.queued_bytes == 101
    owner.outbox.consume(1)
    assert owner.enqueue(700, kind)
    assert owner.enqueue(0, kind)
    assert not owner.enqueue(1, kind), "100 and that one"


def test_one_that_went_beyond_behind_others_is_within_when_they_have_left():
    owner = Owner(cap_bytes=100)
    owner.enqueue(90)
    owner.enqueue(20)
    owner.outbox.consume(90)
    assert owner.enqueue(500)
    assert owner.enqueue(80)
    assert not owner.enqueue(1)


def test_what_has_left_of_a_message_does_not_make_its_reader_slow():
    """A provider that had half of a long request already was said not to keep up."""
    owner = Owner(high_bytes=MIB)
    owner.outbox.enqueue_rest([(bytes(MIB + MIB // 4), MIB + MIB // 4, RESPONSE)], MIB // 2)
    assert not owner.outbox.choked
    owner.enqueue(MIB // 2)
    assert owner.outbox.choked


def test_events_and_the_rest_leave_each_other_their_room():
    owner = Owner(event_bytes=100, cap_bytes=100)
    assert all([owner.enqueue(100), owner.enqueue(100, EVENT), owner.enqueue(30), owner.enqueue(30, EVENT)])
    assert (owner.outbox.undroppable_bytes, owner.outbox.event_bytes) == (130, 130)
    assert not owner.enqueue(1, EVENT)
    assert "events beyond 100 bytes" in str(owner.ended)
    assert owner.outbox.discarded == 5


def test_frames_that_were_taken_in_part_are_judged_each_by_itself():
    """Found here: what one write left over was one lump, judged by the cap alone, events and all."""
    owner = Owner(event_bytes=1000, cap_bytes=1000, event_policy="drop")
    frames = [event("e", bytes(400)).framed() for _ in range(10)]
    owner.outbox.enqueue_rest([(each, len(each), EVENT) for each in frames], len(frames[0]) + 100)
    assert owner.ended is None
    outbox = owner.outbox
    assert (outbox.sent, outbox.dropped_events) == (1, 6)
    assert outbox.oldest(1 << 20) == frames[1:4]
    assert outbox.queued_bytes == 3 * len(frames[0]) - 100
    outbox.consume(outbox.queued_bytes)
    outbox.drained()
    assert outbox.sent == 4


def test_half_of_the_cap_is_kept_from_requests():
    owner = Owner(cap_bytes=100)
    owner.enqueue(500)
    assert owner.outbox.has_room_for_requests, "one message does not count"
    owner.enqueue(51)
    assert not owner.outbox.has_room_for_requests


@for_each(("policy", "owes"), [("drop", False), ("disconnect", True)])
def test_events_that_may_be_dropped_are_owed_to_nobody(policy, owes):
    owner = Owner(event_policy=policy)
    assert not owner.outbox.has_undroppable
    owner.enqueue(10, EVENT)
    assert owner.outbox.has_undroppable is owes
    owner.enqueue(10)
    assert owner.outbox.has_undroppable


# -- all links -------------------------------------------------------------------------------------


def test_a_peer_that_does_not_say_what_it_handled_is_never_behind():
    assert Outbox(Owner(), OutboxLimits(), Budget()).in_flight.end > 1 << 60


@for_each("before", [0, (1 << 32) - 100], ids=["new", "the count begins anew"])
def test_a_peer_is_behind_beyond_a_window_and_until_some_of_it_is_handled(before):
    owner = Owner(high_msgs=2)
    outbox = owner.outbox
    outbox.sent = before
    outbox.handled(before & 0xFFFFFFFF)
    assert outbox.in_flight.end == before + WINDOW_MSGS
    outbox.sent = before + WINDOW_MSGS + 1
    outbox.progressed()
    outbox.progressed()
    for size in (1, 1, 1):
        owner.enqueue(size)
    assert (owner.said, outbox.full) == ([True], True)
    outbox.handled((before + WINDOW_MSGS) & 0xFFFFFFFF)
    assert owner.said == [True], "it is full"
    while outbox.queue:
        outbox.dequeue()
    outbox.drained()
    assert owner.said == [True, False]
    outbox.sent += WINDOW_MSGS
    outbox.progressed()
    outbox.handled((outbox.sent - AGAIN_MSGS - 1) & 0xFFFFFFFF)
    assert owner.said == [True, False, True]
    outbox.handled((outbox.sent - AGAIN_MSGS) & 0xFFFFFFFF)
    assert owner.said == [True, False, True, False]


def test_a_peer_that_handled_more_than_it_was_sent_is_not_behind():
    owner = Owner()
    owner.outbox.handled(0)
    owner.outbox.sent = WINDOW_MSGS + 1
    owner.outbox.progressed()
    owner.outbox.handled(WINDOW_MSGS + 9)
    assert owner.said == [True, False]


def test_a_peer_that_handles_large_requests_is_behind_beyond_a_window_of_bytes():
    owner = Owner()
    outbox = owner.outbox
    assert not outbox.in_flight.sends_large(1, WINDOW_BYTES + 1), "it does not say what it handled"
    outbox.handled(0)
    asked = []
    for size in (WINDOW_BYTES, 1, WINDOW_BYTES):
        asked.append(outbox.in_flight.sends_large(outbox.sent + 1, size))
        outbox.sent += 1
        outbox.progressed()
    assert (asked, owner.said) == ([True, True, True], [True]), "a mark comes back before the window is full"
    outbox.marked(1)
    assert (owner.said, outbox.in_flight.large_bytes) == ([True], WINDOW_BYTES + 1)
    outbox.handled(3)
    assert owner.said == [True], "of large ones it is asked: counts of either end may differ"
    outbox.marked(2)
    assert (owner.said, outbox.in_flight.end) == ([True, False], 3 + WINDOW_MSGS)
    outbox.marked(3)
    assert outbox.in_flight.large_bytes == 0


def test_marks_are_counted_modulo_32_bits():
    in_flight = InFlight()
    in_flight.handled(0xFFFFFFFE, 0xFFFFFFFE)
    for number in range(0xFFFFFFFF, 0x100000004):
        in_flight.sends_large(number, WINDOW_BYTES)
    assert in_flight.marked(0x100000003, 1)
    assert in_flight.large_bytes == 2 * WINDOW_BYTES
    assert not in_flight.marked(0x100000003, 3)
    assert in_flight.large_bytes == 0


def test_a_full_outbox_has_room_for_a_few_small_requests_of_those_who_cannot_wait():
    outbox = Owner(high_bytes=12 << 10, high_msgs=100, cap_bytes=32 << 10).outbox
    assert outbox.admits_request(1 << 30)
    for _ in range(13):
        outbox.enqueue(b"x", 1 << 10)
    assert (outbox.full, outbox.admits_request(1025)) == (True, False)
    assert [outbox.admits_request(1 << 10) for _ in range(4)] == [True, True, True, False], (
        "three of 1 KiB are a quarter of 12, whatever else waits"
    )
    while outbox.queue:
        outbox.dequeue()
    outbox.drained()
    outbox.enqueue(b"x", 17 << 10)
    assert (outbox.full, outbox.admits_request(1)) == (True, False), "half of the cap is for responses"
    outbox.dequeue()
    outbox.enqueue(b"x", 13 << 10)
    assert outbox.admits_request(1), "it was full no longer in between"


def test_the_budget_spares_whoever_holds_one_message():
    budget = Budget(1000)
    blob, many, few = (Owner(budget) for _ in range(3))
    for _ in range(6):
        many.enqueue(50)
    few.enqueue(10)
    few.enqueue(10)
    assert blob.enqueue(900), "the largest of all, but a single one"
    assert alive(blob, many, few) == [True, False, True]
    single = Owner(budget)
    assert single.enqueue(200)
    assert alive(blob, few, single) == [False, False, True], "where all hold one only, the largest goes"


def test_a_message_that_is_alone_is_not_too_much_for_the_budget():
    budget = Budget(1000)
    blob = Owner(budget)
    assert blob.enqueue(5000)
    blob.outbox.consume(4990)
    assert budget.used_bytes == 10
    assert blob.enqueue(900)


def test_many_links_of_one_user_do_not_make_others_pay():
    budget = Budget(1000)
    guests = [Owner(budget, user=2000) for _ in range(9)]
    owner = Owner(budget, user=1000)
    for guest in guests:
        guest.enqueue(100)
    assert owner.enqueue(500), "of all single messages it is the largest, but that user holds one only"
    assert sum(alive(*guests)) == 5
    assert budget.used_bytes == 1000


def test_one_user_has_a_limit():
    budget = Budget(10_000)
    guests = [Owner(budget, user=2000, user_bytes=300) for _ in range(3)]
    other = Owner(budget, user=2001, user_bytes=300)
    assert other.enqueue(5000), "one message is never too much"
    guests[0].enqueue(100)
    guests[1].enqueue(150)
    guests[2].enqueue(100)
    assert alive(*guests, other) == [True, False, True, True]
    assert "350 bytes wait for user 2000, the limit of one user is 300" in str(guests[1].ended)
    assert isinstance(guests[1].ended, LinkBroken)


def test_an_event_that_many_wait_for_is_there_once():
    """One large event to sixty subscribers is no reason to end any of them."""
    budget = Budget(32 * MIB)
    many = [Owner(budget, user=number % 3, user_bytes=17 * MIB) for number in range(60)]
    frame = event("e", bytes(16 * MIB)).framed()
    for owner in many:
        owner.outbox.enqueue_rest([(frame, len(frame), EVENT)], 100_000)
    assert all(alive(*many))
    assert budget.used_bytes == len(frame)
    for number, owner in enumerate(many):
        assert budget.used_bytes == len(frame) == sum(o.outbox.charged_bytes for o in many), number
        if number % 2:
            owner.outbox.consume(owner.outbox.queued_bytes)
            owner.outbox.drained()
        else:
            owner.outbox.discard()
    assert budget.used_bytes == 0
    assert not budget.accounts
    assert not budget._shared


def test_messages_in_parts_share_their_payload():
    budget, payload = Budget(), bytes(LARGE_BYTES)
    for _ in range(3):
        parts = [b"topic", memoryview(payload), bytes(20)]
        Owner(budget).enqueue(sum(map(len, parts)), form=parts)
    assert budget.used_bytes == len(payload) + 25
    routes = [bytes(LARGE_BYTES), b"", bytes(20)]
    Owner(budget).enqueue(len(routes[0]) + 20, form=routes)
    Owner(budget).enqueue(len(routes[0]) + 20, form=list(routes))
    assert budget.used_bytes == 3 * len(payload) + 65, "an empty part is everybody's"
