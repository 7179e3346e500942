"""Results in the form that clients read."""

import json
import re
from pathlib import Path

from broker.nfp.worker.run import Result, encode, tidied
from broker.nfp.worker.session import event_time


def said(result):
    return json.loads(encode("w", tidied(result)))["w"]


def test_what_json_can_say_is_said():
    found = said(Result(result={"path": Path("/a"), "bytes": b"\0", "set": {1}, 2: None}))
    assert found["result"] == {"path": "/a", "bytes": "AA==", "set": [1], "2": None}


def test_what_it_cannot_becomes_a_failed_result_that_tells_so():
    loop = []
    loop.append(loop)
    for value in (object(), loop, {"deep": [lambda: None]}):
        result = Result(result=value, messages=("m", 1), juuid="u1", task=5)
        found = said(result)
        assert found["failed"]
        assert "cannot be written as JSON" in found["errors"][-1]
        assert (found["messages"], found["juuid"], found["task"]) == (["m", "1"], "u1", "5")


def test_loose_fields_of_a_tasks_own_result_are_tidied():
    found = said(Result(errors="one", messages=None, resources=("a",), failed=1))
    assert (found["errors"], found["messages"], found["resources"], found["failed"]) == (
        ["one"],
        [],
        ["a"],
        True,
    )


def test_times_read_as_deployed_norfab_writes_them():
    assert re.fullmatch(r"\d\d-[A-Z][a-z]{2}-\d{4} \d\d:\d\d:\d\d\.\d{3}", event_time())
