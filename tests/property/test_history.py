"""The history of events against a list that keeps everything."""

from hypothesis import given
from hypothesis import strategies as st

from broker.wire import message as wire
from broker.wire.event_history import NUMBERS, MessageHistory, follower

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 60)),
        st.tuples(st.just("skip"), st.integers(1, 3)),
        st.tuples(st.just("hole"), st.just(0)),
        st.tuples(st.just("begin"), st.sampled_from([0, 1, 7, NUMBERS - 2, NUMBERS])),
    ),
    max_size=40,
)


class Everything:
    """What happened since the last break, whole."""

    def __init__(self):
        self.base = None
        self.sizes = {}
        self.numbers = []

    def break_at(self, base):
        self.base, self.numbers = base, []

    def held(self, max_msgs, max_bytes):
        kept, total = [], 0
        for number in reversed(self.numbers):
            total += self.sizes[number]
            if len(kept) == max_msgs or total > max_bytes:
                break
            kept.insert(0, number)
        return kept

    def since(self, sequence, held):
        """Numbers behind ``sequence``; None when one of them is missing."""
        if self.base is None:
            return None
        known = [self.base, *self.numbers]
        if sequence not in known and sequence % NUMBERS not in [n % NUMBERS for n in known]:
            return None
        at = next(i for i, n in enumerate(known) if n % NUMBERS == sequence % NUMBERS)
        behind = self.numbers[at:]
        return behind if behind == held[len(held) - len(behind) :] else None


@given(steps=STEPS, max_msgs=st.integers(0, 8), max_bytes=st.integers(0, 400))
def test_covers_and_since_tell_exactly_what_is_held(steps, max_msgs, max_bytes):
    history, model, last = MessageHistory(max_msgs, max_bytes), Everything(), 0
    for kind, value in [("begin", 0), *steps]:
        if kind == "begin":
            history.begin("e", value)
            model.break_at(value)
            last = value
        elif kind == "hole":
            history.mark_gap()
            model.break_at(None)
        else:
            for _ in range(value if kind == "skip" else 0):
                last = follower(last)
            if kind == "skip" or model.base is None:
                model.break_at(last)
            last = follower(last)
            message = wire.event("t", b"x" * (value if kind == "add" else 0), sequence=last)
            history.add([message])
            model.numbers.append(last)
            model.sizes[last] = message.size
        held = model.held(max_msgs, max_bytes)
        assert len(history) == len(held)
        assert history.held_bytes == sum(model.sizes[n] for n in held)
        for sequence in {0, 1, last, NUMBERS, *model.numbers, *(range(max(last - 4, 0), last + 3))}:
            wanted = model.since(sequence, held)
            assert history.covers("e", sequence) == (wanted is not None)
            if wanted is not None:
                assert [message.sequence for message in history.since(sequence, 99)] == wanted
                assert [message.sequence for message in history.since(sequence, 2)] == wanted[:2]
