"""The law of pauses, whatever is tried again and however long it lives."""

from hypothesis import given
from hypothesis import strategies as st

from broker.backoff import LASTED, Backoff

seconds = st.floats(0.01, 100.0)


def test_bounds_double_to_the_limit_and_begin_anew_once_something_lasted():
    backoff = Backoff(0.5, 3.0, lasted_s=10.0, spread=False)
    assert [backoff.after(1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.failures == 5
    assert (backoff.after(longest_s=1.5), backoff.failures, backoff.after(11.0)) == (1.5, 5, 0.5)
    assert (backoff.after(10.0), backoff.failures) == (1.0, 2)
    backoff.reset()
    assert backoff.after() == 0.5


@given(first_s=seconds, factor=st.floats(1.0, 1000.0), lives=st.lists(st.floats(0.0, 1000.0), max_size=200))
def test_a_pause_is_within_the_bound_of_the_failures_since_something_lasted(first_s, factor, lives):
    longest_s = first_s * factor
    spread, whole = Backoff(first_s, longest_s), Backoff(first_s, longest_s, spread=False)
    failures = 0
    for lived_s in lives:
        failures = 1 if lived_s > LASTED * longest_s else failures + 1
        bound_s = whole.after(lived_s)
        assert bound_s == min(first_s * 2.0 ** min(failures - 1, 32), longest_s)
        assert 0.0 <= spread.after(lived_s) <= bound_s


@given(first_s=seconds, factor=st.floats(1.0, 100.0), attempt_s=st.floats(0.0, 0.01))
def test_two_that_displace_each_other_are_soon_slow(first_s, factor, attempt_s):
    """Each comes back one pause and one attempt after the other one took its place."""
    longest_s = first_s * factor
    both = [Backoff(first_s, longest_s, spread=False) for _ in range(2)]
    now, since = 0.0, [0.0, 0.0]
    for turn in range(60):
        each = turn % 2
        pause_s = both[each].after(now - since[each] if turn > 1 else 0.0)
        now += pause_s + attempt_s
        since[each] = now
    assert pause_s == longest_s
