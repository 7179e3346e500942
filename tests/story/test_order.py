"""Nothing lost, nothing twice, nothing out of order: several clients, services and subscribers at once."""

import pytest

from tests.live.brokers import eventually
from tests.live.load import Caller, Provider, Publisher, Subscriber, stop_all

pytestmark = pytest.mark.story


@pytest.mark.patient
def test_calls_and_events_of_many_parties(broker):
    providers = [Provider(broker.uri, f"svc{number}") for number in range(3)]
    listeners = [Subscriber(broker.uri, prefix) for prefix in ("", "load", "load.1")]
    callers = [
        Caller(broker.uri, f"svc{who % 3}", who, 600, window=64, pad=5000 if who == 0 else 0)
        for who in range(6)
    ]
    publishers = [Publisher(broker.uri, f"load.{who}", who, 1000) for who in range(3)]
    for party in (*callers, *publishers):
        party.finish()
    eventually(lambda: [listener.received for listener in listeners], [3000, 3000, 1000])
    stop_all([*listeners, *providers])
    assert sum(provider.answered for provider in providers) == 6 * 600
