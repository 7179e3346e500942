"""The table of a worker's jobs: what is in it, and what is given up when memory is needed."""

from broker.nfp.names import Dialect
from broker.nfp.worker import job_run
from broker.nfp.worker.job_run import COMPLETED, FAILED, TIMEOUT_S, JobRun, JobTable


def run_of(uuid, body=b"{}", client=b"cli#2"):
    return JobRun(uuid, client, "s", Dialect.NORFAB, body)


def ended(table, uuid, result=b"{}", failed=False):
    made = run_of(uuid)
    table.add(made)
    made.end(200, result, failed=failed)
    table.close(made)
    return made


def test_who_asked_and_which_attempt_it_is():
    for client, name, attempt in ((b"a#b#7", "a#b", 7), (b"plain", "plain", 0), (None, "", 0)):
        made = run_of("u", client=client)
        assert (made.client_name, made.attempt) == (name, attempt)


def test_what_the_body_says_and_what_stands_for_it():
    said = run_of("u", b'{"task":"t","args":[1],"kwargs":{"a":2},"timeout":5}')
    assert (said.task, said.args, said.kwargs, said.timeout_s) == ("t", [1], {"a": 2}, 5.0)
    unsaid = run_of("u", b"\xff")
    assert (unsaid.task, unsaid.args, unsaid.kwargs, unsaid.timeout_s) == ("", [], {}, TIMEOUT_S)


def test_counts_and_results_that_are_not_safe_yet():
    table = JobTable()
    table.add(run_of("waiting"))
    good, bad = ended(table, "a"), ended(table, "b", failed=True)
    assert (table.open, table.done, table.failed) == (1, 1, 1)
    assert [each.uuid for each in table.unrecorded] == ["a", "b"]
    table.remove(bad)
    table.remove(bad)
    assert [each.uuid for each in table.unrecorded] == ["a"]
    assert (good.shown, bad.shown, table.get("b"), len(table)) == (COMPLETED, FAILED, None, 2)
    table.remove(table.get("waiting"))
    assert (table.open, len(table)) == (0, 1)


def test_what_an_earlier_life_stored_comes_back():
    made = run_of("u", b'{"task":"t","timeout":50}')
    made.idempotent = False
    again = JobRun.restored(made.as_stored()._replace(age_s=20.0))
    assert (again.uuid, again.client, again.task, again.idempotent) == ("u", b"cli#2", "t", False)
    assert (again.stored, again.accepted, again.received_s) == (True, True, made.received_s)
    assert 19.0 < made.deadline - again.deadline < 21.0


def test_results_that_nobody_takes_are_given_up_at_last(monkeypatch):
    monkeypatch.setattr(job_run, "UNRECORDED_MAX", 3)
    table = JobTable()
    for number in range(5):
        ended(table, f"u{number}")
    assert [each.uuid for each in table.unrecorded] == ["u2", "u3", "u4"]
    monkeypatch.setattr(job_run, "UNRECORDED_BYTES", 10)
    ended(table, "large", b"x" * 100)
    assert [each.uuid for each in table.unrecorded] == ["large"]
    assert len(table) == 1
