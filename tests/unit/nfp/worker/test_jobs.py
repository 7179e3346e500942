"""The table of jobs: what is kept, and what is forgotten when memory is needed."""

import pytest

from broker.nfp.names import Dialect
from broker.nfp.worker import jobs as room
from broker.nfp.worker.jobs import DONE, FAILED, Job, Jobs


def job(uuid, body=b"{}", client=b"cli#2"):
    return Job(uuid, client, "s", Dialect.NORFAB, body)


def ended(table, uuid, result=b"{}", failed=False):
    made = job(uuid)
    table.add(made)
    made.end(200, result, failed=failed)
    table.close(made)
    return made


def test_who_asked_and_which_attempt_it_is():
    assert (job("u", client=b"a#b#7").asker, job("u", client=b"a#b#7").attempt) == ("a#b", 7)
    assert (job("u", client=b"plain").asker, job("u", client=b"plain").attempt) == ("plain", 0)
    assert (job("u", client=None).asker, job("u", client=None).attempt) == ("", 0)


def test_what_the_body_says_and_what_stands_for_it():
    said = job("u", b'{"task":"t","args":[1],"kwargs":{"a":2},"timeout":5}')
    assert (said.task, said.args, said.kwargs, said.timeout_s) == ("t", [1], {"a": 2}, 5.0)
    unsaid = job("u", b"\xff")
    assert (unsaid.task, unsaid.args, unsaid.kwargs, unsaid.timeout_s) == ("", [], {}, room.TIMEOUT_S)


def test_counts_and_offers():
    table = Jobs()
    table.add(job("waiting"))
    ended(table, "a")
    bad = ended(table, "b", failed=True)
    assert (table.open, table.done, table.failed) == (1, 1, 1)
    assert [each.uuid for each in table.offered] == ["a", "b"]
    table.recorded(bad)
    table.recorded(bad)
    table.recorded(table.get("waiting"))
    assert [each.uuid for each in table.offered] == ["a"]
    assert (bad.recorded, bad.state, table.get("a").state) == (True, FAILED, DONE)
    table.unrecorded(bad)
    table.unrecorded(bad)
    assert [each.uuid for each in table.offered] == ["a", "b"]


@pytest.mark.parametrize(("limits", "left"), [((2, 10**6), 2), ((100, 2 * (4 + 100)), 2)])
def test_the_oldest_recorded_jobs_are_forgotten_and_others_never(limits, left):
    table = Jobs(*limits)
    ended(table, "kept", b"x" * 100)
    for number in range(5):
        table.recorded(ended(table, f"r{number}", b"x" * 100))
    assert [each.uuid for each in table] == ["kept", *[f"r{number}" for number in range(5 - left, 5)]]


def test_results_that_nobody_takes_are_given_up_at_last(monkeypatch):
    monkeypatch.setattr(room, "OFFER_JOBS", 3)
    table = Jobs()
    for number in range(5):
        ended(table, f"u{number}")
    assert [each.uuid for each in table.offered] == ["u2", "u3", "u4"]
    assert table.given_up == 2
    monkeypatch.setattr(room, "OFFER_BYTES", 10)
    ended(table, "large", b"x" * 100)
    assert [each.uuid for each in table.offered] == ["large"]
