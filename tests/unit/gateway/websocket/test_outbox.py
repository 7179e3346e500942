"""What waits for a client that does not read: quotas apart for events and the rest, gaps, the end."""

from broker.transport.budget import Budget
from broker.transport.outbox import OutboxLimits
from gateway.closes import SLOW
from gateway.websocket.outbox import Gap, WebOutbox


class Owner:
    def __init__(self, policy="drop", event_bytes=100, cap_bytes=1000, budget=None):
        self.codes: list[int] = []
        self.marks: list[bool] = []
        limits = OutboxLimits(event_bytes=event_bytes, cap_bytes=cap_bytes, event_policy=policy)
        self.budget = budget or Budget()
        self.outbox = WebOutbox(self, limits, self.budget)

    def choked(self, choked):
        self.marks.append(choked)

    def abort(self, error):
        raise AssertionError("a slow client is told, not cut off")

    def close_with(self, code, reason=""):
        assert reason
        self.codes.append(code)


def keep(outbox, form):
    outbox.enqueue(form, len(form))


def take(outbox, limit):
    forms = outbox.oldest(limit) if outbox.queue else []
    outbox.consume(sum(map(len, forms)))
    return forms


def test_forms_leave_in_order_and_in_portions():
    outbox = Owner().outbox
    keep(outbox, b"a" * 10)
    outbox.enqueue_events(b"b" * 10, 1, 1, 1)
    keep(outbox, b"c" * 30)
    assert take(outbox, 25) == [b"a" * 10, b"b" * 10]
    assert take(outbox, 25) == [b"c" * 30], "one form always leaves, whatever its size"
    assert take(outbox, 25) == []
    assert outbox.queued_bytes == 0


def test_events_have_a_quota_of_their_own():
    owner = Owner()
    keep(owner.outbox, bytes(800))
    owner.outbox.enqueue_events(bytes(100), 1, 1, 1)
    owner.outbox.enqueue_events(bytes(500), 1, 2, 2)
    assert owner.outbox.gap is None, "one of any size finds room beyond the limit"
    owner.outbox.enqueue_events(b"x", 1, 3, 3)
    assert owner.outbox.gap == Gap(1, 3, 3)
    assert owner.codes == []


def test_responses_are_not_dropped_but_end_the_link():
    owner = Owner()
    keep(owner.outbox, bytes(1000))
    keep(owner.outbox, bytes(5000))
    assert owner.codes == [], "one of any size finds room beyond the limit"
    keep(owner.outbox, b"x")
    assert owner.codes == [SLOW]
    assert owner.budget.used_bytes == 0


def test_policy_disconnect():
    owner = Owner("disconnect")
    owner.outbox.enqueue_events(bytes(100), 4, 1, 4)
    owner.outbox.enqueue_events(b"x", 1, 5, 5)
    assert owner.codes == []
    owner.outbox.enqueue_events(b"y", 1, 6, 6)
    assert owner.codes == [SLOW]
    assert owner.outbox.dropped_events == 0


def test_a_gap_ends_at_low_water():
    outbox = Owner().outbox
    for number in range(1, 6):
        outbox.enqueue_events(bytes(25), 1, number, number)
    outbox.enqueue_events(bytes(25), 3, 6, 8)
    assert take(outbox, 25)
    assert outbox.take_gap() is None
    outbox.enqueue_events(b"x", 1, 9, 9)
    assert outbox.gap == Gap(4, 6, 9), "it would fit, but the gap is not over"
    assert take(outbox, 75)
    assert outbox.take_gap() == Gap(4, 6, 9), "a quarter of 100 bytes waits"
    assert outbox.take_gap() is None
    outbox.enqueue_events(b"x", 1, 10, 10)
    assert outbox.gap is None
    assert outbox.dropped_events == 4


def test_the_budget_ends_the_longest_queue():
    budget = Budget(150)
    long, short = Owner(budget=budget), Owner(budget=budget)
    for _ in range(2):
        keep(long.outbox, bytes(50))
    keep(short.outbox, bytes(60))
    assert (long.codes, short.codes) == ([SLOW], [])
    assert budget.used_bytes == 60
