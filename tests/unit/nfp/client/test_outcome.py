"""What a job has got, and when that is all."""

import msgspec

from broker.nfp.outcome import AnswerMeaning, Failure, Outcome, worker_of
from broker.nfp.targets import ALL, ANY, Target
from tests.tables import for_each


def said(**values):
    return msgspec.json.encode(values)


def results(**values):
    return msgspec.json.encode(
        {worker: {"result": value, "failed": False} for worker, value in values.items()}
    )


def named(*names):
    return Outcome("s", Target("list", names))


def test_all_waits_for_the_set_that_202_names():
    outcome = Outcome("s", ALL)
    outcome.take_answer(200, results(a=1))
    assert not outcome.complete
    assert outcome.take_answer(202, said(workers=["a", "b"])) == AnswerMeaning("dispatched", message="a, b")
    assert outcome.outstanding == ("b",)
    assert outcome.take_answer(200, results(b=2)) == AnswerMeaning("finished", "b")
    assert outcome.complete


def test_the_first_set_that_names_somebody_counts():
    outcome = Outcome("s", ALL)
    for workers in ([], ["a"], ["a", "b"], []):
        outcome.take_answer(202, said(workers=workers))
    assert outcome.workers == ("a",)


def test_any_is_complete_with_one_result_but_one_of_each_service_is_not():
    one, each = Outcome("s", ANY), Outcome("all", ANY)
    for outcome in (one, each):
        outcome.take_answer(202, said(workers=[]))
        outcome.take_answer(200, results(a=1))
    assert (one.complete, each.complete) == (True, False)


def test_who_brought_the_one_result_need_not_have_been_named():
    outcome = Outcome("s", ANY)
    outcome.take_answer(202, said(workers=[]))
    outcome.take_answer(200, results(a=1))
    outcome.take_answer(200, results(b=2))
    assert outcome.workers == ("a",)


def test_names_are_complete_without_202():
    outcome = named("a", "b")
    outcome.take_answer(200, results(a=1, b=2))
    assert outcome.complete


def test_names_that_the_broker_does_not_know_are_not_waited_for():
    outcome = named("a", "b")
    outcome.take_answer(202, said(workers=["a"], missing=["b"]))
    outcome.take_answer(200, results(a=1))
    assert outcome.complete
    assert outcome.missing == ("b",)


@for_each("body", [b"\xff\x00", b"plain", b"[1]", b'"text"', b'{"x": {"y": 1}}', b"7"])
def test_a_result_that_names_nobody_belongs_to_the_one_who_is_awaited(body):
    outcome = named("a")
    outcome.take_answer(202, said(workers=["a"]))
    outcome.take_answer(200, body)
    assert outcome.complete
    assert set(outcome.results) == {"a"}
    assert outcome.fresh == ["a"]


def test_results_that_name_nobody_wait_until_as_many_are_awaited():
    outcome = Outcome("s", ALL)
    outcome.take_answer(200, b"1")
    outcome.take_answer(202, said(workers=["a", "b", "c"]))
    outcome.take_answer(200, b"2")
    assert outcome.results == {}
    outcome.take_answer(200, results(c=3))
    assert outcome.complete
    assert [outcome.results[name] for name in "ab"] == [1, 2]


def test_a_nameless_result_of_any_has_no_name():
    outcome = Outcome("s", ANY)
    outcome.take_answer(200, b"1")
    outcome.take_answer(200, b"2")
    assert outcome.results == {"": 1}
    assert outcome.duplicates == 1


def test_an_error_is_of_the_job_or_of_the_worker_it_names():
    outcome = Outcome("s", ALL)
    outcome.take_answer(202, said(workers=["a", "b"]))
    assert outcome.take_answer(500, said(worker="a", error="broken")) == AnswerMeaning(
        "failed", "a", "broken"
    )
    assert not outcome.complete
    assert outcome.take_answer(408, said(workers=None, error="late")).worker == ""
    assert outcome.error == Failure(408, "late", "expired")
    assert outcome.complete


def test_the_first_end_of_a_worker_counts():
    outcome = named("a", "b")
    outcome.take_answer(202, said(workers=["a", "b"]))
    outcome.take_answer(200, results(a=1))
    outcome.take_answer(500, said(worker="a", error="late"))
    outcome.take_answer(408, said(worker="b", error="gone"))
    outcome.take_answer(200, results(b=2))
    assert (outcome.results["a"]["result"], outcome.failures, outcome.duplicates) == (
        1,
        {"b": Failure(408, "gone", "expired")},
        2,
    )


@for_each(
    ("body", "text"),
    [
        (said(error="e", errors=["f"]), "e"),
        (said(errors=["f"], status="FAILED"), "f"),
        (said(errors=[], status="FAILED"), "FAILED"),
        (b"no json", "status 500"),
        (said(errors="odd", error=7), "7"),
    ],
)
def test_the_text_of_an_error(body, text):
    outcome = named("a")
    outcome.take_answer(500, body)
    assert outcome.error == Failure(500, text)


def test_status():
    outcome = Outcome("s", ANY)
    seen = [outcome.status]
    for status, body in (
        (300, said(status="PENDING")),
        (202, said(workers=[])),
        (202, said(workers=["a"])),
        (201, said(worker="a")),
        (102, said(worker="a")),
    ):
        outcome.take_answer(status, body)
        seen.append(outcome.status)
    assert seen == ["new", "queued", "queued", "dispatched", "started", "waiting"]


def test_an_input_request_is_told_once_and_ends_with_its_answer():
    outcome = Outcome("s", ANY)
    asked = {"event_type": "input_request", "worker": "a", "extras": {"input_request": {"id": "1"}}}
    assert outcome.take_event(asked)
    assert outcome.status == "waiting"
    assert not outcome.take_event(asked)
    assert outcome.take_event({"event_type": "input_response", "worker": "a"})
    assert outcome.status == "started"


def test_another_broker_names_others():
    outcome = Outcome("s", ALL)
    outcome.take_answer(202, said(workers=["a", "b"]))
    outcome.take_answer(200, results(a=1))
    outcome.reopen()
    assert not outcome.acknowledged
    outcome.take_answer(202, said(workers=["a", "c"]))
    outcome.take_answer(200, results(c=3))
    assert outcome.complete


@for_each("body", [b"", b"[]", b"{", b'{"worker":3}', b'{"workers":"ab"}', b"\xff", b'{"workers":[1,""]}'])
@for_each("status", [200, 201, 202, 102, 300, 400, 999])
def test_no_body_is_too_odd(status, body):
    for target in (ALL, ANY, Target("list", ("a", "b"))):
        outcome = Outcome("s", target)
        outcome.take_answer(status, body)
        assert outcome.workers == ()
    assert isinstance(worker_of(body), str)
