"""NFP seen from the Flux side: any rank, other users, a browser's WebSocket; inside rank 0; a broker that goes."""

import contextlib
import errno
import functools
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from broker.client.blocking import connect
from broker.errors import RpcError
from broker.transport import curve
from broker.transport.curve import CurveClient
from broker.transport.link import Options
from tests.live.attached import HEADGATE, START_S, Attached, attached, until_said
from tests.live.brokers import Tree, eventually, joined, one_broker, tree_config, without_progress
from tests.live.gateways import USERS, gateway_process
from tests.live.listeners import place
from tests.story.test_gateway_identity import Web

pytestmark = pytest.mark.story
RULES = """[nfp]
[[nfp.rules]]
tasks = ["reboot"]
standings = ["user"]
allow = false
"""
ANN, EVE = 1000, 2000
AWAY = (errno.ENOSYS, errno.ECANCELED, errno.EHOSTUNREACH)
"""How a call ends while a bridge is not back yet, or leaves before it has answered."""


@contextlib.contextmanager
def tree_of_two(rundir):
    """Two ranks; rank 1 has a listener for the keys of two users. Gives a function userid -> handle on rank 1."""
    keys = {userid: curve.generate() for userid in (ANN, EVE)}
    tables = '[[listen]]\nuri = "tcp://127.0.0.1:*"\n' + "".join(
        f'[[clients]]\npublic_key = "{key.public_key}"\nuserid = {userid}\n' for userid, key in keys.items()
    )
    config = tree_config(rundir, [f"ipc://{rundir}/tree-{rank}" for rank in range(2)], tables, secret=True)
    server = curve.load(rundir / "broker.cert").public_key
    with joined(Tree(rundir, config, [()] * 2)) as tree, contextlib.ExitStack() as stack:

        def user(userid):
            where = place(tree.ranks[1], server, keys[userid])
            options = Options(extra={"curve": CurveClient(keys[userid], server)})
            return stack.enter_context(connect(where.uri, options=options))

        yield tree, user


def streamed(handle, topic, payload):
    """All records, and the error number of the end."""
    records = []
    try:
        with handle.stream(topic, payload) as stream:
            records += [record.json() for record in stream]
    except RpcError as error:
        return records, error.errno
    return records, 0


def refusal(call, *words):
    with pytest.raises(RpcError) as caught:
        call(*words)
    return caught.value.errno, str(caught.value)


# ---------------------------------------------------------------- ranks and users


def test_a_task_is_run_from_rank_1_and_its_events_are_seen_there(rundir):
    gate = rundir / "gate"
    gate.touch()
    with contextlib.ExitStack() as stack:
        tree, _user = stack.enter_context(tree_of_two(rundir))
        stack.enter_context(attached(rundir, tree.ranks[0].uri))
        h = stack.enter_context(connect(tree.ranks[1].uri))
        with h.subscribe("nfp.job.u1.") as events:
            given = {"kwargs": {"gate": str(gate)}, "uuid": "u1", "target": "any"}
            records, end = streamed(h, "nfp.lab.copy", given)
            assert end == 0
            kinds = [record["type"] for record in records]
            assert (kinds.count("result"), kinds[-1]) == (1, "result")
            assert {"accepted", "event"} <= set(kinds)
            assert records[-1]["result"]["result"] == "copied"
            topics = []
            for event in events:
                topics.append(event.topic.rpartition(".")[2])
                assert event.private
                if topics[-1] == "closed":
                    break
            assert topics[0] == "submitted"
            assert {"dispatched", "progress", "finished"} <= set(topics)
            again = h.rpc("nfp.jobs.result", {"uuid": "u1"}).json()
            assert again["results"]["lab-1"]["result"] == "copied"
            (service,) = [
                row for row in h.rpc("nfp.services.list").json()["services"] if row["name"] == "lab"
            ]
            assert service["workers"] == ["lab-1"]


def test_users_have_their_own_jobs_and_see_no_others(rundir):
    gate = rundir / "gate"
    with tree_of_two(rundir) as (tree, user), attached(rundir, tree.ranks[0].uri, RULES):
        ann, eve = user(ANN), user(EVE)
        with connect(tree.ranks[0].uri) as owner, contextlib.ExitStack() as stack:
            hears = {
                who: stack.enter_context(handle.subscribe("nfp.job."))
                for who, handle in (("ann", ann), ("eve", eve), ("owner", owner))
            }
            with ann.stream("nfp.lab.copy", {"kwargs": {"gate": str(gate)}, "uuid": "anns"}) as stream:
                assert next(stream).json()["uuid"] == "anns"
                for method in ("show", "result", "attach", "cancel"):
                    number, text = refusal(eve.rpc, f"nfp.jobs.{method}", {"uuid": "anns"})
                    assert (number, text) == (errno.ENOENT, "no job 'anns' that you may see")
                assert eve.rpc("nfp.jobs.list").json()["jobs"] == []
                assert [row["userid"] for row in owner.rpc("nfp.jobs.list").json()["jobs"]] == [ANN]
                # the same uuid of somebody else is not the same job
                assert refusal(eve.rpc, "nfp.lab.ping", {"uuid": "anns"})[0] != 0
                gate.touch()
                assert [record.json() for record in stream][-1]["type"] == "result"
            number, text = refusal(eve.rpc, "nfp.lab.reboot")
            assert (number, "not allowed" in text) == (errno.EPERM, True)
            assert (
                owner.rpc("nfp.lab.reboot", {"uuid": "owners"}).json()["results"]["lab-1"]["failed"] is False
            )
            eve.rpc("nfp.lab.ping", {"uuid": "eves"})
            assert uuids(hears["eve"], "eves") == {"eves"}
            assert uuids(hears["owner"], "eves") == {"anns", "owners", "eves"}
            ann.rpc("nfp.lab.ping", {"uuid": "last"})
            assert uuids(hears["ann"], "last") == {"anns", "last"}


ENDS = [
    *(f"nfp.mmi.service.broker.{task}" for task in ("shutdown", "restart", "get_logs")),
    *(f"nfp.mmi.service.worker.{task}" for task in ("shutdown", "restart")),
]


@pytest.mark.patient
def test_only_owners_end_brokers_and_workers(rundir):
    """Neither users of other ranks nor those of the web, admins included; by a topic's words or by nfp.run."""
    with contextlib.ExitStack() as stack:
        tree, user = stack.enter_context(tree_of_two(rundir))
        stack.enter_context(attached(rundir, tree.ranks[0].uri))
        gateway = stack.enter_context(gateway_process(rundir, tree.ranks[0].uri, users=USERS))
        ann = functools.partial(refusal, user(ANN).rpc)
        for refused in (ann, Web(stack, gateway, "bob").refused, Web(stack, gateway, "eve").refused):
            for topic in ENDS:
                number, text = refused(topic)
                assert (number, "not allowed: a user may not call" in text) == (errno.EPERM, True), topic
            for service in (
                "mmi.service.broker",
                "mmi.service.worker",
            ):  # *.disconnect asks for no answer (RFC 6)
                assert refused("nfp.run", {"service": service, "task": "disconnect"})[0] == errno.EPERM
        with connect(tree.ranks[0].uri) as owner:
            (alive,) = owner.rpc("nfp.workers.list", {"service": "lab"}).json()["workers"]
            assert (alive["name"], alive["status"]) == ("lab-1", "alive")
            owner.rpc("nfp.lab.ping")
            owner.rpc("nfp.mmi.service.worker.shutdown", {"target": "lab-1"})
            eventually(lambda: owner.rpc("nfp.workers.list", {"service": "lab"}).json()["workers"], [])


def uuids(events, last):
    """The jobs that events tell of, up to the end of job ``last``."""
    found = set()
    for event in events:
        found.add(event.json()["uuid"])
        if event.topic == f"nfp.job.{last}.closed":
            return found
    raise AssertionError("the events ended")


# ---------------------------------------------------------------- the web


@pytest.mark.patient
def test_a_websocket_session_sees_the_events_of_its_job(rundir):
    gate = rundir / "gate"
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(one_broker(rundir))
        stack.enter_context(attached(rundir, broker.uri))
        with gateway_process(rundir, broker.uri, users=USERS) as gateway, contextlib.ExitStack() as sockets:
            web = functools.partial(Web, sockets, gateway)
            bob, eve = web("bob"), web("eve")
            for one in (bob, eve):
                one.rpc("event.subscribe", {"topic": "nfp.job."})
                one.rpc("event.subscribe", {"topic": "mark."})
            payload = {"kwargs": {"gate": str(gate)}, "uuid": "bobs"}
            bob.send(
                {
                    "type": "request",
                    "topic": "nfp.lab.copy",
                    "matchtag": 77,
                    "flags": ["streaming"],
                    "payload": payload,
                }
            )
            said = bob.take(lambda one: one.get("matchtag") == 77)["payload"]
            assert (said["type"], said["uuid"]) == ("accepted", "bobs")
            progress = bob.take(lambda one: one.get("topic") == "nfp.job.bobs.progress")
            assert progress["payload"]["event"]["message"] == "copying 4 of 10"
            gate.touch()
            result = bob.take(lambda one: (one.get("payload") or {}).get("type") == "result")
            assert result["payload"]["result"]["result"] == "copied"
            assert (
                bob.take(lambda one: one.get("matchtag") == 77 and one.get("errnum"))["errnum"]
                == errno.ENODATA
            )
            bob.take(lambda one: one.get("topic") == "nfp.job.bobs.closed")
            assert not [topic for topic in eve.events() if topic.startswith("nfp.")]
            assert eve.refused("nfp.jobs.show", {"uuid": "bobs"})[0] == errno.ENOENT


def test_a_question_of_a_task_is_answered_from_the_web(rundir):
    with one_broker(rundir) as broker, attached(rundir, broker.uri), connect(broker.uri) as h:
        stream = h.stream("nfp.lab.asks", {"uuid": "q"})
        with stream:
            asked = next(
                record.json()["event"] for record in stream if record.json().get("kind") == "input_request"
            )
            ident = asked["extras"]["input_request"]["id"]
            eventually(lambda: h.rpc("nfp.jobs.show", {"uuid": "q"}).json()["asked"], ["lab-1"])
            h.rpc("nfp.jobs.answer", {"uuid": "q", "input_id": ident, "value": "yes"})
            last = [record.json() for record in stream][-1]
            assert (last["type"], last["result"]["result"]) == ("result", "yes")


# ---------------------------------------------------------------- a Flux broker that goes and comes back


@pytest.mark.patient
def test_a_job_outlives_the_flux_broker(rundir):
    gate = rundir / "gate"
    with one_broker(rundir) as broker, attached(rundir, broker.uri) as nfp:
        given = {"kwargs": {"gate": str(gate)}, "uuid": "u"}
        with connect(broker.uri) as h, h.stream("nfp.lab.copy", given) as stream:
            next(stream)
            broker.kill()
        broker.start()
        broker.wait_ready()
        gate.touch()
        with connect(broker.uri) as h:
            eventually(lambda: state(h, "u"), "done")
            found = h.rpc("nfp.jobs.attach", {"uuid": "u"}).json()["results"]
            assert found["lab-1"]["result"] == "copied"
        assert nfp.broker.poll() is None


def state(handle, uuid):
    try:
        return handle.rpc("nfp.jobs.show", {"uuid": uuid}).json()["state"]
    except RpcError as error:
        if error.errno not in AWAY:
            raise
        return ""


# ---------------------------------------------------------------- inside rank 0


@contextlib.contextmanager
def command(rundir, *words):
    """A verb that runs until Ctrl-C, and what it printed until then."""
    state = ("nfp.endpoint=tcp://127.0.0.1:*", f"nfp.base_dir={rundir}/state")
    setting = "--broker-set" if words[0] == "up" else "--set"
    argv = [
        *HEADGATE,
        *words,
        "--rundir",
        str(rundir / "run"),
        *(word for each in state for word in (setting, each)),
    ]
    log = rundir / "command.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors)
    try:
        yield process, until_said(process, "Ctrl-C ends it\n", log)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        assert without_progress(log.read_text()) == ""


@pytest.mark.patient
@pytest.mark.parametrize(
    "words",
    [
        ("start", "--size", "2", "--wait", "--nfp"),
        ("up", "--size", "2", "--nfp", "--listen", "http://127.0.0.1:0"),
    ],
)
def test_one_command_brings_an_nfp_broker_up_and_down(rundir, words):
    with command(rundir, *words) as (process, said):
        assert re.search(r"NFP broker at tcp://127\.0\.0\.1:", said)
        assert "headgate nfp worker FILE.py" in said
        if words[0] == "up":  # another terminal finds it without a word, at any port
            shown = f". {rundir}/run/local-env && headgate nfp services --json"
            found = subprocess.run(["sh", "-c", shown], stdout=subprocess.PIPE, timeout=START_S, check=True)
            assert "filesharing" in found.stdout.decode()
        with connect(f"local://{rundir}/run/local-1") as h:
            names = [row["name"] for row in h.rpc("nfp.services.list").json()["services"]]
            assert "filesharing" in names
        process.send_signal(signal.SIGINT)
        assert process.wait(START_S) == 0
        assert not (rundir / "run").exists()
        assert (rundir / "state" / "nfp.db").exists()


@pytest.mark.patient
def test_management_restarts_and_ends_it_and_rank_0_goes_on(rundir):
    with command(rundir, "up", "--nfp", "--listen", "http://127.0.0.1:0") as (process, said):
        endpoint = re.search(r"NFP broker at ([^\s,]+)", said)[1]
        worker = Attached(rundir, "")
        try:
            worker.start_worker(endpoint)
            with connect(f"local://{rundir}/run/local-0") as h:
                eventually(lambda: "lab-1" in str(h.rpc("nfp.workers.list").json()))
                h.rpc("nfp.lab.ping", {"uuid": "kept"})
                before = epoch(h)
                h.rpc("nfp.mmi.service.broker.restart")
                eventually(lambda: state(h, "kept"), "done")
                eventually(lambda: epoch(h) not in ("", before))
                h.rpc("nfp.mmi.service.broker.shutdown")
                eventually(lambda: epoch(h), "")
                assert h.rpc("attr.get", {"name": "rank"}).json()["value"] == "0"
        finally:
            worker.close()
        assert process.poll() is None


def epoch(handle):
    """Which incarnation it is; "" while there is none."""
    try:
        answer = handle.rpc("nfp.events.service.broker.read", {"kwargs": {"limit": 1}}).json()
    except RpcError as error:
        if error.errno not in AWAY:
            raise
        return ""
    return answer["results"][""]["epoch"]


def test_a_broker_by_its_configuration(rundir):
    config = rundir / "broker.toml"
    config.write_text(
        f'[broker]\nrundir = "{rundir}/run"\n[nfp]\nendpoint = "tcp://127.0.0.1:*"\nbase_dir = "state"\n'
    )
    log = rundir / "broker.log"
    with log.open("wb") as errors:
        process = subprocess.Popen([*HEADGATE, "broker", "--config", str(config)], stderr=errors)
    try:
        eventually(lambda: "NFPBroker listens at" in log.read_text())
        with connect(f"local://{rundir}/run/local-0") as h:
            eventually(lambda: epoch(h) != "")
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_S) == 0
    finally:
        process.kill()
        process.wait()
    assert Path(rundir / "state" / "broker.key").exists()


# ---------------------------------------------------------------- how they fare


def test_jobs_stand_in_the_table_of_calls_and_events(rundir):
    with one_broker(rundir) as broker, attached(rundir, broker.uri), connect(broker.uri) as h:
        for _ in range(3):
            h.rpc("nfp.lab.ping")
        h.rpc("nfp.lab.fail", {"kwargs": {"device": "r1"}})
        told = h.rpc("broker.calls").json()
        assert told["silent"] == []
        tasks, topics = told["others"]["nfp"], told["others"]["event"]
        assert [tasks["lab.ping"][each] for each in ("calls", "open", "errors")] == [3, 0, {}]
        assert sum(tasks["lab.ping"]["buckets"]) == 3
        assert (tasks["lab.fail"]["calls"], tasks["lab.fail"]["errors"]) == (1, {str(errno.EIO): 1})
        assert "no such device r1" in tasks["lab.fail"]["last_error"]["text"]
        assert tasks["lab.fail"]["last_error"]["userid"] == os.getuid()
        assert topics["nfp.job.*.submitted"]["calls"] == 4
        shown = subprocess.run(
            [*HEADGATE, "stats", "--uri", broker.uri, "--services"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        assert shown[0].split()[:3] == ["kind", "method", "rank"]
        kinds = {tuple(line.split()[:2]) for line in shown[1:]}
        assert {("call", "nfp.lab.ping"), ("nfp", "lab.ping"), ("event", "nfp.job.*.submitted")} <= kinds
