"""One call's life: `headgate ping --trace`, `overlay.trace` and `module.trace` across a tree of four."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from broker.client import blocking
from broker.errors import RpcError
from broker.wire.message import CONTROL, EVENT, REQUEST, RESPONSE, STREAMING, request
from broker.wire.payload import decode_json, encode_json
from tests.live.brokers import eventually, tree
from tests.live.speaker import Speaker
from tests.live.verbs import headgate

pytestmark = pytest.mark.story

ALL = {"typemask": REQUEST | RESPONSE | EVENT | CONTROL, "topic_glob": "*", "nodeid": -1}
PINGS = ALL | {"topic_glob": "broker.ping"}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trace")
    os.chmod(directory, 0o700)
    with tree(directory, 4) as ranks:
        yield ranks


def traced(uri, *words):
    """The pings and the summary of ``headgate ping --trace WORDS``."""
    done = headgate("ping", "--trace", "--json", "--interval", "0", "--uri", uri, *words)
    assert done.returncode == 0, done.stderr
    *pings, summary = map(json.loads, done.stdout.splitlines())
    return pings, summary


@pytest.mark.smoke
def test_each_broker_and_link_of_the_way_and_their_sum(running):
    pings, summary = traced(running.ranks[0].uri, "--count", "3", "3")
    where = ["here - 0", "rank 0", "0 - 1", "rank 1", "1 - 3", "rank 3"]
    for ping in [*pings, summary]:
        assert [hop["where"] for hop in ping["hops"]] == where
    for ping in pings:
        assert sum(hop["both_ms"] for hop in ping["hops"]) == pytest.approx(ping["time_ms"], abs=0.001)
        for hop in ping["hops"]:
            assert hop["both_ms"] > 0
            if hop["where"] in ("rank 0", "rank 1"):
                assert hop["there_ms"] + hop["back_ms"] == pytest.approx(hop["both_ms"], abs=0.001)


def test_up_and_down_from_a_leaf_and_to_our_own_broker(running):
    _, summary = traced(running.ranks[3].uri, "--count", "1", "2!attr")
    assert [hop["where"] for hop in summary["hops"] if hop["where"].startswith("rank")] == [
        f"rank {rank}" for rank in (3, 1, 0, 2)
    ]
    _, summary = traced(running.ranks[3].uri, "--count", "1", "3")
    assert [hop["where"] for hop in summary["hops"]] == ["here - 3", "rank 3"]


@pytest.mark.patient
def test_a_service_that_is_slow_is_what_takes_the_time(running):
    def ping(request):
        time.sleep(0.2)
        return request.json() | {"rank": 3}

    with blocking.connect(running.ranks[3].uri) as handle, handle.service("slow", {"ping": ping}):
        _, summary = traced(running.ranks[0].uri, "--count", "2", "3!slow")
    *way, service = summary["hops"]
    assert service["where"] == "3 - service"
    assert service["both_ms"] > 200
    assert max(hop["both_ms"] for hop in way) < 200


def test_the_table(running):
    done = headgate("ping", "-v", "--count", "2", "--interval", "0", "--uri", running.ranks[0].uri, "1")
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["where", "there", "back", "both", "ms"]
    assert [line[:8] for line in lines[2:6]] == ["here - 0", "rank 0  ", "0 - 1   ", "rank 1  "]
    assert lines[-5].split() == ["median", "there", "back", "both", "ms"]


def test_whoever_cannot_be_traced_is_named(running):
    uri = running.ranks[0].uri
    done = headgate("ping", "--trace", "-c", "1", "--uri", uri, "9")
    assert (done.returncode, "it has ranks 0 to 3 (No route to host)" in done.stderr) == (1, True)
    done = headgate("ping", "--trace", "-c", "1", "--uri", uri, "nobody")
    assert (done.returncode, "No service matching nobody.ping" in done.stderr) == (1, True)
    with blocking.connect(uri) as handle, handle.service("terse", {"ping": lambda request: {}}):
        done = headgate("ping", "--trace", "-c", "1", "--uri", uri, "terse")
    assert (done.returncode, "does not say at which rank it is" in done.stderr) == (2, True)


def test_traces_see_calls_and_events_and_end_with_their_readers(running):
    with blocking.connect(running.ranks[0].uri) as handle, blocking.connect(running.ranks[3].uri) as far:
        with handle.stream("overlay.trace", ALL | {"full": True}, nodeid=1) as seen:
            handle.rpc("overlay.ping", {}, nodeid=1)
            far.rpc("broker.ping", {"seq": 4711}, nodeid=0)
            sequence = far.publish("story.x", {"a": 1})
            records = []
            while not records or records[-1]["topic"] != "story.x" or records[-1]["prefix"] != "tx":
                records.append(next(seen).json())
        mine = [
            (record["prefix"], record["rank"], record["type"])
            for record in records
            if record["topic"] == "broker.ping" and record["payload"].get("seq") == 4711
        ]
        assert mine == [("rx", 3, REQUEST), ("tx", 0, REQUEST), ("rx", 0, RESPONSE), ("tx", 3, RESPONSE)]
        events = [(one["prefix"], one["rank"]) for one in records if one["topic"] == "story.x"]
        assert events == [("rx", 0), ("tx", -1)]
        assert sequence > 0
        with handle.stream(
            "module.trace", {"typemask": 15, "topic_glob": "*", "names": ["attr"]}, nodeid=2
        ) as seen:
            handle.rpc("module.ping", {}, nodeid=2)
            handle.rpc("attr.get", {"name": "rank"}, nodeid=2)
            said = [next(seen).json() for _ in range(2)]
        assert [(one["name"], one["prefix"], one["topic"]) for one in said] == [
            ("attr", "rx", "attr.get"), ("attr", "tx", "attr.get"),
        ]  # fmt: skip


def test_two_traces_of_each_other_come_to_rest(running):
    """What brings the records of one is not told by the other."""
    with (
        blocking.connect(running.ranks[0].uri) as handle,
        handle.stream("overlay.trace", ALL | {"clients": True}, nodeid=3),
        handle.stream("overlay.trace", ALL | {"clients": True}, nodeid=1),
        handle.stream("module.trace", {"typemask": 15, "topic_glob": "*", "names": []}, nodeid=3),
    ):
        handle.rpc("overlay.ping", {}, nodeid=3)

        def responses():
            return handle.rpc("broker.stats-get", nodeid=3).json()["tx"]["response"]

        def grown():
            before = responses()
            time.sleep(0.2)
            return responses() - before < 200

        eventually(grown)


@pytest.mark.patient
def test_a_trace_that_is_not_read_misses_messages_and_costs_no_memory(running):
    """Each ping is four records of 20 KiB here, 78 MiB in all; what is kept is the high water mark of one link."""
    rank = running.ranks[0]
    body = {"seq": 1, "pad": "p" * 20_000}
    with Speaker(rank.uri) as tracer, blocking.connect(rank.uri) as handle:
        wanted = encode_json(PINGS | {"full": True, "clients": True})
        tracer.tell(request("overlay.trace", wanted, matchtag=7, flags=STREAMING))
        assert tracer.ping() == 0
        handle.rpc("broker.ping", body, nodeid=1)
        before = rank.rss_kib()
        for _ in range(1000):
            handle.rpc("broker.ping", body, nodeid=1)
        assert rank.rss_kib() - before < 24 << 10

        def missed():
            """Of the next record; some were queued before the first was missed."""
            handle.rpc("broker.ping", {}, nodeid=1)
            record = tracer.take(lambda message: message.matchtag == 7)
            return decode_json(record.payload).get("dropped", 0)

        eventually(lambda: missed() > 1000)


def test_a_client_that_goes_takes_its_trace_along(running):
    with blocking.connect(running.ranks[0].uri) as handle:
        tracer = blocking.connect(running.ranks[0].uri)
        with tracer as leaving:
            leaving.stream("overlay.trace", PINGS, nodeid=3).__enter__()
            leaving.rpc("overlay.ping", {}, nodeid=3)
        handle.rpc("broker.ping", {}, nodeid=3)
        assert traced(running.ranks[0].uri, "--count", "1", "3")[1]["received"] == 1


def test_debug_flags_at_any_rank(running):
    with blocking.connect(running.ranks[0].uri) as handle:
        for op, flags, kept in (("setbit", 4, 4), ("setbit", 1, 5), ("clrbit", 4, 1), ("clr", 0, 0)):
            answer = handle.rpc("overlay.debug", {"op": op, "flags": flags}, nodeid=3)
            assert answer.json() == {"flags": kept}
        with pytest.raises(RpcError):
            handle.rpc("overlay.debug", {"op": "nonsense", "flags": 1}, nodeid=3)


# ---------------------------------------------------------------- headgate trace


def add(asked):
    n = asked.json()["n"]
    if not isinstance(n, int):
        raise RpcError(errno.EINVAL, "n must be a number")
    return {"n": n + 1}


def test_calls_are_watched_at_all_brokers_each_where_it_enters(running):
    """Clients at ranks 1 and 2 call a service at rank 0; the way over rank 0 is not counted again."""
    root, *others = (rank.uri for rank in running.ranks)
    words = [sys.executable, "-m", "broker.cli.main", "trace", "--json", "--count", "4", "--uri", root]
    watching = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stderr.readline() == '{"note":"4 brokers look on"}\n'
    with blocking.connect(root) as provider, provider.service("calc", {"add": add}):
        for uri in others[:2]:
            with blocking.connect(uri) as caller:
                assert caller.rpc("calc.add", {"n": 1}).json() == {"n": 2}
                with pytest.raises(RpcError):
                    caller.rpc("calc.add", {"n": "x"})
    said, complaints = watching.communicate(timeout=20)
    assert (watching.returncode, complaints) == (0, '{"note":"calls: 4, failed: 2, still open: 0"}\n')
    calls = [json.loads(line) for line in said.splitlines()]
    assert [(call["rank"], call["errnum"], call["error"]) for call in calls] == [
        (rank, *end) for rank in (1, 2) for end in ((0, ""), (errno.EINVAL, "n must be a number"))
    ]
    assert {(call["topic"], call["userid"]) for call in calls} == {("calc.add", os.getuid())}
    assert all(0 < call["ms"] < 30_000 for call in calls)


@pytest.mark.patient
def test_a_broker_that_does_not_look_on_is_named(running):
    root = running.ranks[0].uri
    os.kill(running.ranks[3].process.pid, signal.SIGSTOP)
    try:
        words = [sys.executable, "-m", "broker.cli.main", "trace", "--uri", root, "attr.get"]
        watching = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert watching.stderr.readline() == "headgate trace: rank 3 does not answer\n"
        assert watching.stderr.readline() == "headgate trace: 3 brokers look on\n"
        assert headgate("attr", "get", "size", "--uri", root).stdout == "4\n"
        assert "rank 0" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, complaints = watching.communicate(timeout=20)
        assert (watching.returncode, complaints) == (
            130, "headgate trace: calls: 1, failed: 0, still open: 0\n",
        )  # fmt: skip
    finally:
        os.kill(running.ranks[3].process.pid, signal.SIGCONT)


def test_a_rank_that_is_not_there_is_said(running):
    done = headgate("trace", "--rank", "4", "--uri", running.ranks[0].uri)
    assert (done.returncode, "expected a rank from 0 to 3" in done.stderr) == (2, True)
