"""The outbox under any order of parking and draining: its sums, its marks, its ends."""

from hypothesis import given
from hypothesis import strategies as st

from broker.transport.outbox import Budget, Outbox, OutboxLimits
from broker.wire.message import EVENT, RESPONSE

SIZES = st.integers(1, 400)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("park"), st.integers(0, 2), SIZES, st.sampled_from((EVENT, RESPONSE))),
        st.tuples(st.just("drain"), st.integers(0, 2), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("discard"), st.integers(0, 2), st.just(0), st.just(0)),
    ),
    max_size=80,
)


class Owner:
    def __init__(self, limits, budget):
        self.marks, self.ended = [], None
        self.outbox = Outbox(self, limits, budget)
        self.sent, self.accepted = [], []

    def choked(self, choked):
        assert self.ended is None, "the end is the last that is told"
        self.marks.append(choked)

    def abort(self, error):
        self.ended = error
        self.outbox.discard()


def drain(owner, count, partial):
    """The transport takes ``count`` forms; of the last one half, when ``partial``."""
    outbox = owner.outbox
    for left in range(count, 0, -1):
        if not outbox.parked or owner.ended is not None:
            break
        form, size = outbox.unpark(), 0
        name, size = form
        if left == 1 and partial and size > 1:
            outbox.park_first((name, size - size // 2), size - size // 2)
        else:
            owner.sent.append(name)
    if owner.ended is None:
        outbox.progress += 1
        outbox.settle()


@given(STEPS, st.sampled_from(("disconnect", "drop")), st.integers(500, 3000))
def test_sums_marks_and_order_hold(steps, policy, budget_bytes):
    limits = OutboxLimits(high_bytes=600, high_msgs=6, event_bytes=900, cap_bytes=1500, event_policy=policy)
    budget = Budget(budget_bytes)
    owners = [Owner(limits, budget) for _ in range(3)]
    dropped = [0, 0, 0]
    for number, (what, who, amount, how) in enumerate(steps):
        owner = owners[who]
        if owner.ended is not None:
            continue
        outbox = owner.outbox
        if what == "park":
            before = outbox.dropped_events
            outbox.park((number, amount), amount, how)
            dropped[who] += outbox.dropped_events - before
            if owner.ended is None and outbox.dropped_events == before:
                owner.accepted.append(number)
        elif what == "drain":
            drain(owner, amount, how)
        else:
            owner.abort(Exception("closed"))
        check(owners, budget, limits)
    assert [o.outbox.dropped_events for o in owners] == dropped
    assert policy == "drop" or not any(dropped)


def check(owners, budget, limits):
    assert budget.used_bytes == sum(o.outbox.parked_bytes for o in owners) <= budget.limit_bytes
    assert budget.parked == {o.outbox for o in owners if o.outbox.parked is not None}
    for owner in owners:
        outbox = owner.outbox
        held = list(outbox.parked or ())
        assert outbox.parked_bytes == sum(size for _, size in held) <= limits.cap_bytes
        assert all(form[1] == size for form, size in held)
        if owner.ended is not None:
            assert not held
            continue
        assert owner.sent + [form[0] for form, _ in held] == owner.accepted, "in order, none lost, none twice"
        assert owner.marks == [n % 2 == 0 for n in range(len(owner.marks))], "marks alternate"
        assert outbox.choked == (bool(owner.marks) and owner.marks[-1])
        if outbox.parked_bytes > limits.high_bytes or len(held) > limits.high_msgs:
            assert outbox.choked
        if not held:
            assert not outbox.choked or outbox.parked is not None or not owner.sent
