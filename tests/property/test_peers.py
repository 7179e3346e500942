"""What a process knows of the connections of users at others, whatever they say in whatever parts, and who ends."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.messages import Bye, Counts
from gateway.fleet.peers import SILENT_BEATS, Peers

NAMES, USERS = ("p", "q", "r"), ("ada", "bob", "eve")
COUNTS = st.dictionaries(st.sampled_from(USERS), st.integers(0, 3))
STEPS = st.one_of(
    st.tuples(st.just("some"), st.sampled_from(NAMES), COUNTS),
    st.tuples(st.just("all"), st.sampled_from(NAMES), st.lists(COUNTS, min_size=1, max_size=3)),
    st.tuples(st.just("bye"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("beat"), st.sampled_from(NAMES), st.none()),
)


class Carrier:
    """One that has nobody to tell."""

    tells_ends = True

    def say(self, _said, _to=""):
        raise AssertionError("nobody has asked")


@given(st.lists(STEPS, max_size=30))
def test_the_connections_elsewhere_are_those_that_were_told_last(steps):
    peers, carrier = Peers(), Carrier()
    told, silent = {}, {}
    for kind, name, what in steps:
        if kind == "some":
            peers.hear(Counts("g", name, what), carrier)
            told.setdefault(name, {}).update(what)
            silent[name] = 0
        elif kind == "all":
            before = {user: peers.elsewhere(user) for user in USERS}
            for number, part in enumerate(what, 1):
                more = number < len(what)
                peers.hear(Counts("g", name, part, full=number == 1, more=more), carrier)
                if more:  # until all of it is there what was told before counts
                    assert {user: peers.elsewhere(user) for user in USERS} == before
            told[name] = {user: count for part in what for user, count in part.items()}
            silent[name] = 0
        elif kind == "bye":
            peers.hear(Bye(name), carrier)
            told.pop(name, None)
        else:
            peers.beat(carrier)
            for each in list(told):
                silent[each] += 1
                if silent[each] > SILENT_BEATS:
                    del told[each]
        assert sorted(peers.names()) == sorted(told)
        for user in USERS:
            assert peers.elsewhere(user) == sum(counts.get(user, 0) for counts in told.values())
            assert peers.uncertain(user) == any(
                counts.get(user) and silent[each] > 1 for each, counts in told.items()
            )
            assert peers.acquire(user, peers.elsewhere(user) + 1)
            assert not peers.acquire(user, peers.elsewhere(user) + 1)
            peers.release(user)
