"""The fan-out against asking every subscriber about every event."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from broker.identity import NOBODY, Role
from gateway.events.fanout import Fanout
from tests.unit.gateway.events.audience import Subscriber, event, wants

WORDS = st.text("ab.", max_size=4)
WHO = st.builds(
    Subscriber,
    userid=st.sampled_from([1, 2, NOBODY]),
    roles=st.sampled_from([Role.USER, Role.OWNER]),
    denied=st.lists(WORDS.map(str.encode), max_size=1).map(lambda denied: tuple(filter(None, denied))),
)
ACTS = st.one_of(
    st.tuples(st.just("subscribe"), st.integers(0, 3), WORDS),
    st.tuples(st.just("unsubscribe"), st.integers(0, 3), WORDS),
    st.tuples(st.just("forget"), st.integers(0, 3), WORDS),
    st.tuples(st.just("become"), st.integers(0, 3), st.sampled_from([Role.USER, Role.OWNER])),
    st.tuples(
        st.just("publish"),
        st.lists(st.tuples(WORDS, st.booleans(), st.sampled_from([1, 2, NOBODY])), min_size=1, max_size=5),
        st.just(""),
    ),
)


@given(crowd=st.lists(WHO, min_size=4, max_size=4), acts=st.lists(ACTS, max_size=25))
def test_everybody_gets_what_matches_in_order_once(crowd, acts):
    fanout, number = Fanout(), 0
    wanted = [[] for _ in crowd]
    for kind, value, prefix in acts:
        if kind == "publish":
            messages = []
            for topic, private, userid in value:
                number += 1
                messages.append(event(number, topic, private=private, userid=userid))
            for mine, one in zip(wanted, crowd, strict=True):
                mine += [m.sequence for m in messages if wants(one, m)]
            fanout.publish(messages)
        elif kind == "forget":
            fanout.forget(crowd[value])
        elif kind == "become":
            crowd[value].principal = dataclasses.replace(crowd[value].principal, roles=prefix)
            fanout.changed(crowd[value])
        else:
            getattr(fanout, kind)(crowd[value], prefix.encode())
    for mine, one in zip(wanted, crowd, strict=True):
        assert one.link.sequences() == mine
    assert fanout.deliveries == sum(map(len, wanted))
