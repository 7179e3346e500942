"""What the log says about a broker that cannot be reached."""

import logging

from broker.errors import LinkBroken, LinkEnded
from broker.nfp.peer.brokers import HANGUPS, REASONS_MAX, ConnectFailures


def test_each_reason_is_said_once_until_the_broker_answers(caplog):
    """A client without a key sees two reasons in turn, for as long as its job waits."""
    failures = ConnectFailures("me")
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            failures.explain("b", LinkEnded("b hung up"), None)
            failures.explain("b", LinkBroken("b speaks something else"), None)
    assert len(caplog.records) == 2
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        failures.forget("b")
        for _ in range(HANGUPS):
            failures.explain("b", LinkEnded("b hung up"), None)
    assert [record.getMessage()[:40] for record in caplog.records] == [
        "me: the broker b answers now",
        "me: cannot reach the broker: b hung up a",
    ]


def test_ever_new_reasons_do_not_fill_the_log(caplog):
    failures = ConnectFailures("me")
    with caplog.at_level(logging.WARNING):
        for number in range(10 * REASONS_MAX):
            failures.explain("b", LinkBroken(f"reason {number}"), None)
    assert len(caplog.records) == REASONS_MAX
