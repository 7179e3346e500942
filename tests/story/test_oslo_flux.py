"""oslo.messaging through a Flux broker: topics from other ranks and from the web, notifications as events, roles; the
verbs of the command line; the proxy beside rank 0.
"""

import contextlib
import errno
import functools
import json
import os
import re
import signal
import subprocess

import pytest

from broker.client.blocking import connect
from broker.errors import RpcError
from tests.live.attached import HEADGATE, START_S, until_said
from tests.live.brokers import Tree, eventually, joined, one_broker, tree_config
from tests.live.gateways import USERS, gateway_process
from tests.live.oslo_nodes import OsloServer, oslo_node
from tests.live.speaker import listened_at
from tests.story.test_gateway_identity import Web

pytestmark = pytest.mark.story
RULES = """[oslo]
node = "n7"
[[oslo.calls]]
topics = ["lab"]
methods = ["show"]
ctxt = true
[[oslo.calls]]
topics = ["lab"]
methods = ["see"]
"""


def refusal(call, *words):
    with pytest.raises(RpcError) as caught:
        call(*words)
    return caught.value.errno, str(caught.value)


def config(rundir, text=RULES):
    file = rundir / "oslo.toml"
    file.write_text(text)
    return ("--config", str(file))


def notified(node, event_type, *words):
    """Send a notification as soon as somebody listens."""
    eventually(lambda: node.verb("notify", "notifications", event_type, *words).returncode, 0)


# ---------------------------------------------------------------- ranks


@contextlib.contextmanager
def tree_of_two(rundir):
    text = tree_config(rundir, [f"ipc://{rundir}/tree-{rank}" for rank in range(2)], "", secret=True)
    with joined(Tree(rundir, text, [()] * 2)) as tree:
        yield tree


@pytest.mark.smoke
def test_topics_are_called_from_rank_1_and_notifications_are_seen_there(rundir):
    with tree_of_two(rundir) as tree, oslo_node(rundir, "--uri", tree.ranks[0].uri, "--node", "n7") as node:
        assert f"reachable as oslo.EXCHANGE.TOPIC.METHOD on {tree.ranks[0].uri}" in node.said
        servers = [node.server("lab.east", name) for name in ("s1@a", "s2@a")]
        with connect(tree.ranks[1].uri) as h, h.subscribe("oslo.notify.") as events:
            who = {"userid": os.getuid(), "rolemask": 1}
            answers = [
                h.rpc("oslo.openstack.lab.east.show", {"args": {"n": n}}).json()["result"] for n in range(4)
            ]
            assert sorted(each["server"] for each in answers) == ["s1@a", "s1@a", "s2@a", "s2@a"]
            assert [each["n"] for each in answers] == [0, 1, 2, 3]
            for server in servers:
                first = server.took()
                server.took()
                assert first["method"] == "show"
                seen = first["ctxt"]["headgate"]
                assert (seen["userid"], bool(seen["rolemask"] & who["rolemask"])) == (who["userid"], True)
            one = h.rpc("oslo.openstack.lab.east.show", {"server": "s2@a", "args": {"n": 5}}).json()["result"]
            assert one == {"server": "s2@a", "n": 5}
            assert servers[1].took()["args"] == {"n": 5}
            assert h.rpc("oslo.openstack.lab.east.go", {"mode": "fanout"}).json() == {"sent": True}
            assert [server.took()["method"] for server in servers] == ["go", "go"]
            for mandatory in (True, False):
                said = {"mode": "cast", "server": "s1@a", "mandatory": mandatory, "args": {"m": mandatory}}
                assert h.rpc("oslo.openstack.lab.east.do", said).json() == {"sent": True}
                assert servers[0].took()["args"] == {"m": mandatory}
            assert refusal(h.rpc, "oslo.openstack.lab.east.fail") == (
                errno.EIO,
                "lab.errors.NotFound: no such host",
            )
            number, text = refusal(h.rpc, "oslo.openstack.lab.east.never", {"timeout": 0.3})
            assert (number, "openstack/lab.east: " in text) == (errno.ETIMEDOUT, True)
            assert refusal(h.rpc, "oslo.openstack.nolab.show")[0] == errno.EHOSTUNREACH
            assert refusal(h.rpc, "oslo.other.lab.east.show")[0] == errno.EHOSTUNREACH  # another exchange
            assert refusal(h.rpc, "oslo.openstack.nolab.do", {"mode": "cast"})[0] == errno.EHOSTUNREACH
            rows = h.rpc("oslo.topics.list").json()["topics"]
            row = {"exchange": "openstack", "topic": "lab.east", "servers": ["s1@a", "s2@a"], "nodes": ["n7"]}
            assert rows == [row]
            rooms = h.rpc("oslo.status").json()
            assert set(rooms["rooms"]) == {"directory", "call", "fanout", "notify", "cast"}
            assert all(rooms["rooms"].values())
            assert rooms["bridge"]["sent"] >= 10
            notified(node, "disk.full", "host=a1")
            event = next(iter(events))
            assert (event.topic, event.private) == ("oslo.notify.openstack.notifications.info", True)
            assert (event.json()["event_type"], event.json()["payload"]) == ("disk.full", {"host": "a1"})


# ---------------------------------------------------------------- the web


@pytest.mark.patient
def test_the_web_calls_by_topic_and_sees_events_as_its_role_allows(rundir):
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(one_broker(rundir))
        node = stack.enter_context(oslo_node(rundir, *config(rundir), "--uri", broker.uri))
        server = node.server("lab", "s1")
        gateway = stack.enter_context(gateway_process(rundir, broker.uri, users=USERS))
        web = functools.partial(Web, stack, gateway)
        ada, bob = web("ada"), web("bob")
        for one in (ada, bob):
            for topic in ("oslo.notify.", "mark."):
                one.rpc("event.subscribe", {"topic": topic})
        # an owner may everything, a user what the rule says, and nobody can pretend to be somebody else
        assert ada.rpc("oslo.openstack.lab.delete", {"args": {"n": 1}})["result"] == {"server": "s1", "n": 1}
        assert server.took()["ctxt"]["headgate"]["userid"] == 1001
        forged = {"ctxt": {"headgate": {"userid": 0, "rolemask": 1}, "tenant": "t"}}
        assert bob.refused("oslo.openstack.lab.see", forged)[0] == errno.EPERM
        assert bob.rpc("oslo.openstack.lab.show", forged)["result"] == {"server": "s1"}
        assert server.took()["ctxt"] == {"tenant": "t", "headgate": {"userid": 1002, "rolemask": 2}}
        for topic, payload in (
            ("oslo.openstack.lab.delete", {}),
            ("oslo.openstack.lab.show", {"mode": "fanout"}),
            ("oslo.send", {"exchange": "openstack", "topic": "lab", "method": "delete"}),
        ):
            number, text = bob.refused(topic, payload)
            assert (number, "not allowed" in text) == (errno.EPERM, True), topic
        assert bob.refused("oslo.status")[0] == errno.EPERM
        assert [row["topic"] for row in bob.rpc("oslo.topics.list")["topics"]] == ["lab"]
        # a notification is an event, for the owner's dashboard alone
        notified(
            node,
            "compute.instance.create.end",
            "id=7",
            "--priority",
            "error",
            "--ctxt",
            '{"auth_token": "x"}',
        )
        event = ada.take(lambda one: one.get("topic") == "oslo.notify.openstack.notifications.error")
        assert event["payload"]["event_type"] == "compute.instance.create.end"
        assert event["payload"]["payload"] == {"id": 7}
        assert "auth_token" not in json.dumps(event)
        assert bob.events() == []


@pytest.mark.patient
def test_public_notifications_are_seen_by_users(rundir):
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(one_broker(rundir))
        words = ("--set", "oslo.notify_public=true", "--set", 'oslo.notify=["nova/versioned"]')
        node = stack.enter_context(oslo_node(rundir, "--uri", broker.uri, *words))
        gateway = stack.enter_context(gateway_process(rundir, broker.uri, users=USERS))
        bob = Web(stack, gateway, "bob")
        bob.rpc("event.subscribe", {"topic": "oslo.notify."})
        verb = ("notify", "versioned", "a.b", "--exchange", "nova", "--priority", "audit")
        eventually(lambda: node.verb(*verb).returncode, 0)
        event = bob.take(lambda one: one.get("topic") == "oslo.notify.nova.versioned.audit")
        assert event["payload"]["event_type"] == "a.b"


# ---------------------------------------------------------------- a Flux broker that goes and comes back


@pytest.mark.patient
def test_the_pipelines_outlive_the_flux_broker(rundir):
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(one_broker(rundir))
        node = stack.enter_context(oslo_node(rundir, "--uri", broker.uri))
        server = node.server("lab", "s1")
        with connect(broker.uri) as h:
            assert h.rpc("oslo.openstack.lab.show").json()["result"] == {"server": "s1"}
            server.took()
        broker.kill()
        done = node.verb("call", "lab", "show", "n=1")
        assert (done.returncode, json.loads(done.stdout)) == (0, {"server": "s1", "n": 1})
        broker.start()
        broker.wait_ready()
        with connect(broker.uri) as h:
            eventually(lambda: result(h), {"server": "s1"})
            with h.subscribe("oslo.notify.") as events:
                notified(node, "again")
                assert next(iter(events)).json()["event_type"] == "again"
        assert node.process.poll() is None


def result(handle):
    try:
        return handle.rpc("oslo.openstack.lab.show").json()["result"]
    except RpcError as error:
        if error.errno != errno.ENOSYS:  # its bridge is not back yet
            raise
        return None


# ---------------------------------------------------------------- the command line


@pytest.mark.patient
def test_verbs(rundir):
    with oslo_node(rundir) as node:
        servers = [node.server("lab", name) for name in ("s1", "s2")]
        done = node.verb("call", "lab", "show", "n=3", 'deep={"a": [1]}', "--server", "s2")
        assert json.loads(done.stdout) == {"server": "s2", "n": 3, "deep": {"a": [1]}}, done.stderr
        assert servers[1].took()["args"] == {"n": 3, "deep": {"a": [1]}}
        failed = node.verb("call", "lab", "fail", "--server", "s1", "--ctxt", '{"tenant": "t"}')
        assert (failed.returncode, failed.stdout) == (1, "")
        assert failed.stderr == "headgate oslo call: openstack/lab/s1: lab.errors.NotFound: no such host\n"
        assert servers[0].took()["ctxt"] == {"tenant": "t"}
        late = node.verb("call", "lab", "never", "--timeout", "1", "--server", "s1")
        assert (late.returncode, servers[0].took()["method"]) == (4, "never")
        for words in (
            ("call", "nolab", "m"),
            ("cast", "nolab", "m"),
            ("fanout", "nolab", "m"),
            ("notify", "n", "e"),
        ):
            nobody = node.verb(*words)
            assert (nobody.returncode, "nobody listens there" in nobody.stderr) == (3, True), words
            assert "Traceback" not in nobody.stderr
        for words in (("--server", "s1"), ("--server", "s1", "--confirm")):
            assert node.verb("cast", "lab", "do", *words).returncode == 0
            assert servers[0].took()["method"] == "do"
        sent = node.verb("fanout", "lab", "go", "--json")
        assert (sent.returncode, json.loads(sent.stdout)) == (0, {"sent": True})
        assert [server.took()["method"] for server in servers] == ["go", "go"]
        seen = json.loads(node.verb("status", "--json").stdout)
        assert seen["rooms"]["call"]["listeners"] == 2
        assert {row["pipeline"]: row["listeners"] for row in seen["nodes"]}["call"] == 2


@pytest.mark.patient
def test_notifications_are_printed(rundir):
    with oslo_node(rundir) as node:
        argv = [*HEADGATE, "oslo", "listen", "notifications", "--count", "1", "--priority", "error"]
        listening = subprocess.Popen(
            [*argv, "--ipc-dir", str(node.ipc_dir)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            verb = ("notify", "notifications", "disk.full", "n=1", "--priority", "error", "--publisher", "p")
            eventually(lambda: node.verb(*verb).returncode, 0)
            said = json.loads(listening.communicate(timeout=START_S)[0])
        finally:
            listening.kill()
            listening.wait()
        assert (said["exchange"], said["topic"], said["priority"]) == ("openstack", "notifications", "error")
        assert (said["message"]["event_type"], said["message"]["payload"]) == ("disk.full", {"n": 1})
        assert said["message"]["publisher_id"] == "p"


# ---------------------------------------------------------------- beside rank 0


@contextlib.contextmanager
def command(rundir, *words):
    """A verb that runs until Ctrl-C, and what it printed until then."""
    settings = [
        f"oslo.ipc_dir={rundir}/ipc",
        *(f"oslo.{r}_port=0" for r in ("directory", "call", "fanout", "notify", "cast")),
    ]
    setting = "--broker-set" if words[0] == "up" else "--set"
    argv = [
        *HEADGATE,
        *words,
        "--rundir",
        str(rundir / "run"),
        *(word for each in settings for word in (setting, each)),
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
        said = log.read_text().splitlines()  # a busy machine is slow to start
        assert [line for line in said if not line.startswith("headgate: waiting for ")] == []


def gone(rundir):
    """Whether no room answers, and none has left a socket behind."""
    return [name for name in os.listdir(rundir / "ipc") if name.endswith((".ctl", ".in", ".pub"))] == []


@pytest.mark.patient
@pytest.mark.parametrize(
    "words",
    [
        ("start", "--size", "2", "--wait", "--oslo"),
        ("up", "--size", "2", "--oslo", "--listen", "http://127.0.0.1:0"),
    ],
)
def test_one_command_brings_a_proxy_up_and_down(rundir, words):
    with command(rundir, *words) as (process, said):
        assert re.search(r"oslo\.messaging proxy \S+ in \S+/ipc", said)
        assert "transport_url = zmq:///?rpc_zmq_ipc_dir=" in said
        server = OsloServer(rundir / "ipc", rundir / "server.log", "openstack", "lab", "s1")
        try:
            with connect(f"local://{rundir}/run/local-1") as h:
                assert h.rpc("oslo.openstack.lab.show", {"args": {"n": 1}}).json()["result"] == {
                    "server": "s1",
                    "n": 1,
                }
        finally:
            server.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(START_S) == 0
        assert not (rundir / "run").exists()
        eventually(lambda: gone(rundir), True)


@pytest.mark.patient
def test_what_runs_beside_rank_0_is_started_again_and_ends_with_it(rundir):
    with contextlib.ExitStack() as stack:
        file = rundir / "broker.toml"
        file.write_text(
            f'[broker]\nrundir = "{rundir}/run"\n[oslo]\nipc_dir = "{rundir}/ipc"\n'
            'run = ["directory", "call"]\nhost = ""\nnotify = []\n'
        )
        log = rundir / "broker.log"
        with log.open("wb") as errors:
            process = subprocess.Popen([*HEADGATE, "broker", "--config", str(file)], stderr=errors)
        stack.callback(process.wait)
        stack.callback(process.kill)
        eventually(lambda: listened_at(f"local://{rundir}/run/local-0"), True)
        with connect(f"local://{rundir}/run/local-0") as h:
            eventually(lambda: rooms_of(h), ["call", "directory"])
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
                pids = [int(word) for word in children.read().split()]
            assert len(pids) == 2
            os.kill(pids[0], signal.SIGKILL)
            eventually(
                lambda: "oslo proxy: ended with signal 9 (SIGKILL), is started again" in log.read_text(),
                True,
            )
            eventually(lambda: rooms_of(h), ["call", "directory"])
        process.kill()
        process.wait()
        eventually(lambda: gone(rundir), True)


def rooms_of(handle):
    """Rooms that answer, of what the bridge tells."""
    try:
        rooms = handle.rpc("oslo.status").json()["rooms"]
    except RpcError as error:
        if error.errno != errno.ENOSYS:
            raise
        return []
    return sorted(room for room, said in rooms.items() if said)
