"""Which word is which: how a part and a job have ended."""

import json

from broker.nfp import bodies
from broker.nfp.outcome import END_STATES, STATUS_WORDS, job_state, part_state, result_state
from tests.tables import for_each


def result(**more):
    return json.dumps({"w1": {"result": None, "errors": [], **more}}).encode()


def made_by_the_broker(code, **more):
    return bodies.failed(code, "u", "s", "any", "why", "w1", **more)


@for_each(
    ("status", "body", "state"),
    [
        (200, result(failed=False), "done"),
        (200, b"plain text of a peer of the protocol's text", "done"),
        (200, result(failed=True, errors=["Traceback"]), "failed"),
        (200, result(failed=True, result="x" * 100_000), "failed"),
        (200, b'{"w1": {"failed" : true}}', "failed"),
        (200, result(failed=True, status="timeout"), "expired"),
        (200, result(failed=False, status="timeout"), "done"),
        (200, b'{"w1": {"result": {"failed": true}, "failed": false}}', "done"),
        (200, b'{"w1": {"failed": true', "done"),
        (500, made_by_the_broker(500), "failed"),
        (400, made_by_the_broker(400), "failed"),
        (404, made_by_the_broker(404), "failed"),
        (408, made_by_the_broker(408), "expired"),
        (408, b"", "expired"),
        (408, made_by_the_broker(408, word="FAILED"), "failed"),
        (417, made_by_the_broker(417), "cancelled"),
        (417, result(failed=True, status="skipped"), "cancelled"),
    ],
)
def test_a_part(status, body, state):
    assert part_state(status, body) == state


@for_each(
    ("parts", "state"),
    [
        (["done", "done"], "done"),
        (["done", "failed"], "failed"),
        (["cancelled", "failed", "expired"], "failed"),
        (["cancelled", "expired", "done"], "expired"),
        (["cancelled", "done"], "cancelled"),
    ],
)
def test_a_job_and_that_nothing_hides_a_task_that_failed(parts, state):
    assert job_state(parts) == state


def test_each_has_a_word_in_the_journal():
    assert set(STATUS_WORDS) == set(END_STATES)


@for_each(
    ("value", "state"),
    [
        ({"failed": False}, "done"),
        ({"failed": True}, "failed"),
        ({"failed": True, "status": "timeout"}, "expired"),
        ("failed", "done"),
        (None, "done"),
        ({"failed": "yes"}, "done"),
    ],
)
def test_a_result_says_how_its_task_ended(value, state):
    assert result_state(value) == state
    assert part_state(200, json.dumps({"w1": value}).encode()) == state
