"""A right log with one line dropped, doubled, or swapped with another is wrong, and caught."""

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.proof.record import OWNER, USER
from tests.proof.scene import Scene, busy
from tests.proof.test_checker_passes import lively

pytestmark = pytest.mark.tools

MATTERS = {
    "drop": {
        *(
            "up",
            "call",
            "serve",
            "answer",
            "gave_up",
            "publish",
            "published",
            "unpublished",
            "event",
            "subscribed",
        ),
        *("provides", "gap", "job", "job_run", "job_done", "cast", "fanout", "notify"),
    },
    "double": {
        *(
            "up",
            "down",
            "call",
            "serve",
            "answer",
            "gave_up",
            "publish",
            "published",
            "event",
            "job",
            "job_done",
        ),
        *("job_run", "cast", "fanout", "notify"),
    },
}
"""Lines that nobody can do without, and lines that may stand there only once."""


def story() -> Scene:
    """Everything that there is, with two faults in between, so that every kind of line occurs."""
    scene, conns = busy()
    server, client = scene.up("os", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
    jobs = scene.up("nc", "nfp", host=1)
    scene.provides(server, "oslo:todo")
    lively(scene, conns, 2)
    for worker in ("w1", "w2"):
        job = scene.job(jobs)
        scene.run(job, worker)
        scene.done(job, worker)
    scene.wait(2)  # everybody has been told of the server
    for ev in ("cast", "fanout", "notify"):
        scene.serve(scene.call(client, "oslo:todo", ev), server, None, None)
    scene.wait(11)  # what is published just before a fault need not arrive
    scene.fault(True, "partition", links=[[0, 1]])
    scene.publish(conns["a"], "t.x", conns["a"])
    scene.add("driver", "told", rank=1, first=scene.seq, last=scene.seq)
    call = scene.call(conns["b"], "sa")
    scene.answer(call, 113)
    refused = scene.add("b", "publish", conn=conns["b"], id="b-90", topic="t.x", private=False)
    scene.add("b", "unpublished", id=refused["id"], errnum=113)
    scene.fault(False, "partition", links=[[0, 1]])
    scene.wait(3)
    for name in "wu":
        scene.gap(conns[name], 1)
    lively(scene, conns, 2)
    scene.wait(11)
    scene.fault(True, "kill9", members=["broker-4"], ranks=[4])
    call = scene.call(conns["c"], "sa")
    scene.down(conns["c"], "lost")
    scene.gave_up(call)
    scene.fault(False, "kill9", members=["broker-4"], ranks=[4])
    scene.wait(3)
    conns["c"] = scene.up("c", 4, 1500, USER)
    scene.subscribed(conns["c"], "t.")
    lively(scene, conns, 2)
    scene.rpc(conns["u"], "sw", conns["w"], 1002, USER)
    scene.rpc(conns["a"], "sw", conns["w"], 0, OWNER)
    return scene.end()


RIGHT = story().lines


def verdict_of(lines: dict[str, list[dict[str, Any]]]):
    scene = Scene()
    scene.lines = lines
    with tempfile.TemporaryDirectory() as folder:
        return scene.judged(Path(folder))


def places(change: str) -> list[tuple[str, int]]:
    kinds = MATTERS[change]
    return [(who, n) for who, lines in RIGHT.items() for n, line in enumerate(lines) if line["ev"] in kinds]


def test_the_right_log_is_right():
    verdict = verdict_of(copy.deepcopy(RIGHT))
    assert verdict.ok, [str(one) for one in verdict.violations]


def test_every_kind_of_line_occurs():
    for change, kinds in MATTERS.items():
        assert {RIGHT[who][n]["ev"] for who, n in places(change)} == kinds


FEW = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])


def dropped(who: str, n: int) -> dict[str, list[dict[str, Any]]]:
    lines = {name: list(told) for name, told in RIGHT.items()}
    del lines[who][n]
    return lines


def doubled(who: str, n: int) -> dict[str, list[dict[str, Any]]]:
    lines = {name: list(told) for name, told in RIGHT.items()}
    lines[who].insert(n, dict(lines[who][n]))
    return lines


CHANGES = {"drop": dropped, "double": doubled}


def test_every_dropped_or_doubled_line_is_caught():
    missed = [
        (change, RIGHT[who][n])
        for change, changed in CHANGES.items()
        for who, n in places(change)
        if verdict_of(changed(who, n)).ok
    ]
    assert missed == []


def ordered_pairs() -> list[tuple[str, int, int]]:
    """Pairs of lines of one file whose order is promised: the same caller's at one provider, events, one stream's."""
    pairs = []
    for who, lines in RIGHT.items():
        last: dict[Any, int] = {}
        for n, line in enumerate(lines):
            key = _stream_of(line)
            if key is not None:
                if key in last:
                    pairs.append((who, last[key], n))
                last[key] = n
    return pairs


def _stream_of(line: dict[str, Any]) -> Any:
    if line["ev"] == "serve":
        return ("serve", line["conn"], line["from"], _CALLS[line["id"]]["to"], _CALLS[line["id"]]["ev"])
    if line["ev"] == "event":
        return ("event", line["conn"])
    if line["ev"] == "answer":
        return ("answer", line["id"])
    return None


REQUESTS = ("call", "cast", "fanout", "notify")
_CALLS = {line["id"]: line for lines in RIGHT.values() for line in lines if line["ev"] in REQUESTS}


@FEW
@given(st.sampled_from(ordered_pairs()))
def test_two_swapped_lines_are_caught(pair):
    who, one, other = pair
    lines = copy.deepcopy(RIGHT)
    first, second = lines[who][one], lines[who][other]
    first["t"], second["t"] = second["t"], first["t"]
    lines[who][one], lines[who][other] = second, first
    assert not verdict_of(lines).ok, (first, second)


STAMPS = [
    (who, n)
    for who, lines in RIGHT.items()
    for n, line in enumerate(lines)
    if line.get("userid") is not None and line["ev"] == "serve"
]


@FEW
@given(st.sampled_from(STAMPS), st.sampled_from(["userid", "roles", "from"]), st.integers(0, 7))
def test_another_stamp_is_caught(place, field, value):
    who, n = place
    lines = copy.deepcopy(RIGHT)
    line = lines[who][n]
    caller = next(
        up for up in lines[line["from"].partition("#")[0]] if up["ev"] == "up" and up["conn"] == line["from"]
    )
    if field == "from":
        line["from"] = "a#1" if line["from"] != "a#1" else "b#1"
    elif field == "userid":
        line["userid"] += value + 1
    else:
        line["roles"] = (~caller["roles"] & 7) or 0
    assert not verdict_of(lines).ok
