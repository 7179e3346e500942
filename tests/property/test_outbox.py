"""The outbox under any order of parking and draining: its sums, its marks, its ends."""

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from broker.transport import outbox as module
from broker.transport.budget import Budget
from broker.transport.outbox import PROTO_TYPE, Outbox, OutboxLimits
from broker.wire.message import EVENT, RESPONSE

KINDS = st.sampled_from((EVENT, RESPONSE))
SIZES = st.one_of(st.integers(30, 400), st.integers(30, 4000))
WHO = st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), WHO, SIZES, KINDS),
        st.tuples(st.just("fan out"), WHO, SIZES, KINDS),
        st.tuples(st.just("flush"), WHO, SIZES, KINDS),
        st.tuples(st.just("take"), WHO, st.integers(0, 3000), KINDS),
        st.tuples(st.just("take one"), WHO, st.just(0), KINDS),
        st.tuples(st.just("discard"), WHO, st.just(0), KINDS),
    ),
    max_size=80,
)
LARGE = 300
WRITE = 700


def frame(number, size, kind):
    """A frame as far as an outbox looks into it; the bytes in front tell it from others."""
    data = bytearray([number % 256]) * size
    data[PROTO_TYPE] = kind
    return bytes(data)


class Owner:
    def __init__(self, limits, budget, account):
        self.marks, self.ended = [], None
        self.outbox = Outbox(self, limits, budget)
        self.outbox.account = account
        self.sent, self.accepted = bytearray(), bytearray()
        self.begun = 0  # bytes of the oldest form that were sent

    def choked(self, choked):
        assert self.ended is None, "the end is the last that is told"
        self.marks.append(choked)

    def abort(self, error):
        self.ended = error
        self.outbox.discard()

    def enqueue(self, form, kind):
        before = self.outbox.dropped_events
        self.outbox.enqueue(form, len(form), kind)
        if self.outbox.dropped_events == before:
            self.accepted += form

    def flush(self, number, size, kind):
        """The kernel takes a part of several frames."""
        if self.outbox.queue is not None:
            return
        forms = [frame(number + n, max(30, size // (n + 1)), kind) for n in range(4)]
        taken = size * 3 // 2
        before = self.outbox.dropped_events
        self.outbox.enqueue_rest([(form, len(form), kind) for form in forms], taken)
        dropped = self.outbox.dropped_events - before
        self.accepted += b"".join(forms[: len(forms) - dropped])
        self.sent += b"".join(forms)[:taken]
        while forms and taken >= len(forms[0]):
            taken -= len(forms.pop(0))
        self.begun = taken if forms else 0

    def take(self, count):
        if not self.outbox.queue:
            return
        forms = self.outbox.oldest(WRITE)
        data = b"".join(forms)[self.begun :][:count]
        self.sent += data
        self.outbox.consume(len(data))
        self.begun += len(data)
        while forms and self.begun >= len(forms[0]):
            self.begun -= len(forms.pop(0))
        self.outbox.drained()

    def take_one(self):
        if self.outbox.queue:
            self.sent += self.outbox.dequeue()[self.begun :]
            self.begun = 0
            self.outbox.drained()


@given(STEPS, st.sampled_from(("disconnect", "drop")), st.integers(1500, 9000), st.integers(0, 5000))
def test_sums_marks_and_order_hold(steps, policy, budget_bytes, user_bytes):
    limits = OutboxLimits(high_bytes=600, high_msgs=6, event_bytes=900, cap_bytes=1500, event_policy=policy)
    budget = Budget(budget_bytes)
    user = budget.account("user", user_bytes)
    owners = [Owner(limits, budget, each) for each in (user, user, None)]
    with mock.patch.object(module, "LARGE_BYTES", LARGE):
        for number, (what, who, amount, kind) in enumerate(steps):
            owner = owners[who]
            if what == "fan out":
                form = frame(number, amount, kind)
                for each in owners:
                    if each.ended is None:
                        each.enqueue(form, kind)
            elif owner.ended is not None:
                owner.outbox.enqueue(b"late", 4)
            elif what == "enqueue":
                owner.enqueue(frame(number, amount, kind), kind)
            elif what == "flush":
                owner.flush(number, amount, kind)
            elif what == "take":
                owner.take(amount)
            elif what == "take one":
                owner.take_one()
            else:
                owner.abort(Exception("closed"))
            check(owners, budget, limits, user)


def check(owners, budget, limits, user):
    parked = [owner.outbox for owner in owners if owner.outbox.queue is not None]
    assert budget.used_bytes == sum(o.outbox.charged_bytes for o in owners) == held_bytes(parked)
    assert budget.accounts == {outbox.account for outbox in parked}
    assert user.outboxes == {outbox for outbox in parked if outbox.account is user}
    assert user.charged_bytes == sum(outbox.charged_bytes for outbox in user.outboxes)
    alone = len(budget.accounts) == 1 and not any(account.surplus_bytes for account in budget.accounts)
    assert budget.used_bytes <= budget.limit_bytes or alone
    assert not user.limit_bytes or user.charged_bytes <= user.limit_bytes or not user.surplus_bytes
    for owner in owners:
        check_one(owner, owner.outbox, limits)


def held_bytes(outboxes):
    """What is there: small forms once for each outbox, large ones once."""
    small, large = 0, {}
    for outbox in outboxes:
        for form, size, _marks in outbox.queue:
            whole = form.obj if isinstance(form, memoryview) else form
            if len(whole) < LARGE:
                small += size
            else:
                large[id(whole)] = len(whole)
    return small + sum(large.values())


def check_one(owner, outbox, limits):
    held = list(outbox.queue or ())
    begun = owner.begun if held else 0
    assert outbox.queued_bytes == sum(len(form) for form, _, _ in held) - begun
    assert [len(form) for form, _, _ in held] == [
        size + begun * (not at) for at, (_, size, _) in enumerate(held)
    ]
    events = [size for _, size, marks in held if marks & 1]
    others = [size for _, size, marks in held if not marks & 1]
    assert (outbox.event_bytes, outbox.undroppable_bytes) == (sum(events), sum(others))
    assert sum(events) - max(events, default=0) <= limits.event_bytes
    assert sum(others) - max(others, default=0) <= limits.cap_bytes
    if owner.ended is not None:
        assert not held
        return
    assert owner.sent + b"".join(form for form, _, _ in held)[begun:] == owner.accepted, (
        "in order, none lost, none twice"
    )
    assert owner.marks == [n % 2 == 0 for n in range(len(owner.marks))], "marks alternate"
    assert outbox.choked == (bool(owner.marks) and owner.marks[-1])
    if outbox.queued_bytes > limits.high_bytes or len(held) > limits.high_msgs:
        assert outbox.choked
    if not held:
        assert not outbox.choked or outbox.queue is not None


@given(STEPS)
def test_events_end_no_link_whose_policy_is_to_drop_them(steps):
    limits = OutboxLimits(high_bytes=600, high_msgs=6, event_bytes=900, cap_bytes=1, event_policy="drop")
    owner = Owner(limits, Budget(1 << 30), None)
    for number, (what, _who, amount, _kind) in enumerate(steps):
        if what in ("enqueue", "fan out"):
            owner.enqueue(frame(number, amount, EVENT), EVENT)
        elif what == "flush":
            owner.flush(number, amount, EVENT)
        else:
            owner.take(amount)
        assert owner.ended is None


@given(st.lists(SIZES, max_size=3), st.integers(30, 1 << 20), KINDS)
def test_one_message_of_any_size_finds_room_behind_what_is_within_the_limits(small, size, kind):
    within = sum(small) + 30
    limits = OutboxLimits(high_bytes=600, high_msgs=6, event_bytes=within, cap_bytes=within)
    owner = Owner(limits, Budget(), None)
    for number, each in enumerate((*small, size, 30)):
        owner.enqueue(frame(number, each, kind), kind)
        assert owner.ended is None


@given(st.integers(30, 1 << 20), KINDS)
def test_a_message_that_is_alone_is_never_too_much_for_the_budget(size, kind):
    owner = Owner(OutboxLimits(), Budget(20), None)
    owner.enqueue(frame(0, size, kind), kind)
    assert owner.ended is None
