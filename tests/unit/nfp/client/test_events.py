"""Events that are kept for readers."""

import weakref
from types import SimpleNamespace

from broker.nfp.client.events import Event, Subscription
from broker.nfp.client.limits import Limits
from broker.nfp.contract import EventFilter
from tests.unit.nfp.store.samples import run


class Body:
    """Of an event; it can be seen whether anybody has it."""


def test_a_subscription_keeps_nothing_that_was_read():
    async def story():
        events = Subscription(SimpleNamespace(limits=Limits()), EventFilter("", "", frozenset()), None)
        events.replay([], -1)
        bodies = [Body(), Body()]
        there = [weakref.ref(body) for body in bodies]
        for number, body in enumerate(bodies):
            events.take(Event("progress", body=body, sequence=number), 9)
        bodies.clear()
        del body
        for left in (1, 0):
            await anext(events)
            assert (events.ready, sum(each() is not None for each in there)) == (left, left)
        assert events.lost == 0

    run(story())
