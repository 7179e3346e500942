"""The bridges of NFP and oslo.messaging to a broker over TCP with CURVE: their keys, and what is said without."""

import subprocess

import pytest

from broker.client.blocking import connect
from broker.transport import curve
from tests.live.attached import HEADGATE, START_S, attached, until_said
from tests.live.listeners import one_place
from tests.live.oslo_nodes import FREE_PORTS, oslo_node
from tests.live.verbs import headgate

pytestmark = pytest.mark.story
CERT, SERVER_KEY = "HEADGATE_CERT", "HEADGATE_SERVER_KEY"
VERBS = {
    "nfp broker": ("nfp", "broker", "--endpoint", "tcp://127.0.0.1:*"),
    "oslo bridge": ("oslo", "bridge"),
    "oslo proxy": ("oslo", "proxy", *FREE_PORTS),
}
both = pytest.mark.parametrize(
    "verbs",
    [
        pytest.param(["nfp broker", "oslo bridge"], id="bridges"),
        pytest.param(["oslo proxy"], id="proxy", marks=pytest.mark.patient),
    ],
)


@pytest.fixture
def place(rundir):
    with one_place(rundir, "") as found:
        curve.save(found.client, rundir / "client.cert")
        curve.save(curve.load(rundir / "broker.cert").public, rundir / "broker.pub")
        yield found


@pytest.fixture(params=["key", "file"])
def named(request, rundir, place, monkeypatch):
    """The environment names our certificate and the broker's key, by itself or in a file."""
    key = place.server_key if request.param == "key" else str(rundir / "broker.pub")
    monkeypatch.setenv(CERT, str(rundir / "client.cert"))
    monkeypatch.setenv(SERVER_KEY, key)
    return place


def folders(verb, rundir):
    return (
        ("--base-dir", str(rundir / "state")) if verb == "nfp broker" else ("--ipc-dir", str(rundir / "ipc"))
    )


def ended(verb, rundir, uri):
    """Exit code and last words of a verb that cannot start."""
    words = [*VERBS[verb], *folders(verb, rundir), "--uri", uri]
    if verb == "oslo proxy":  # its bridge is a child, which says what is wrong
        done = subprocess.run(
            [*HEADGATE, *words], capture_output=True, text=True, check=False, timeout=START_S
        )
    else:
        done = headgate(*words)
    return done.returncode, done.stderr


def test_jobs_are_run_through_a_broker_that_speaks_curve(rundir, named):
    with attached(rundir, named.uri), connect(named.broker.uri) as h:
        answer = h.rpc("nfp.lab.ping", {"kwargs": {"n": 4}, "uuid": "u1"}).json()
        assert answer["results"]["lab-1"]["failed"] is False
        assert h.rpc("nfp.jobs.show", {"uuid": "u1"}).json()["state"] == "done"


@pytest.mark.patient
def test_topics_are_called_through_a_broker_that_speaks_curve(rundir, named):
    with oslo_node(rundir, "--uri", named.uri) as node, connect(named.broker.uri) as h:
        node.server("lab.east", "s1@a")
        answer = h.rpc("oslo.openstack.lab.east.show", {"args": {"n": 1}}).json()
        assert answer["result"] == {"server": "s1@a", "n": 1}


@pytest.mark.patient
def test_a_bridge_by_itself_comes_in_by_its_key(rundir, named):
    argv = [*HEADGATE, "oslo", "bridge", *folders("oslo bridge", rundir), "--uri", named.uri]
    with oslo_node(rundir) as node, subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert f"oslo.EXCHANGE.TOPIC.METHOD on {named.uri}" in until_said(
                process, "Ctrl-C ends it", node.log
            )
            node.server("lab", "s1@a")
            with connect(named.broker.uri) as h:
                answer = h.rpc("oslo.openstack.lab.show", {"args": {"n": 2}}).json()
                assert answer["result"] == {"server": "s1@a", "n": 2}
        finally:
            process.terminate()
        assert process.wait(START_S) == 0


@both
def test_keys_that_are_wrong_are_named(rundir, monkeypatch, place, verbs):
    """One of the two alone, a file that is not there, none at a broker that wants one, none to another machine."""
    here, missing = "tcp://127.0.0.1:1", "is not set; a CURVE connection needs"
    hint = f"see {CERT} and {SERVER_KEY}"
    tried = [
        ({CERT: "/nowhere"}, here, (78,), f"{SERVER_KEY} {missing} {CERT} and {SERVER_KEY}"),
        ({SERVER_KEY: "/nowhere"}, here, (78,), f"{CERT} {missing} {CERT} and {SERVER_KEY}"),
        (
            {CERT: f"{rundir}/none.cert", SERVER_KEY: place.server_key},
            here,
            (75,),
            f"{rundir}/none.cert",
        ),
        ({}, place.uri, (1, 3), f"no CURVE keys are named, {hint}"),
        ({}, "tcp://192.0.2.1:8051", (78,), "plaintext off loopback"),
        ({}, "tcp://192.0.2.1:8051", (78,), hint),
    ]
    wrong = {}
    for verb in verbs:
        # what a proxy says is what its bridge, a child, said to it
        for environ, uri, codes, words in tried[:1] if verb == "oslo proxy" else tried:
            with monkeypatch.context() as named:
                for name, value in environ.items():
                    named.setenv(name, value)
                code, said = ended(verb, rundir, uri)
            if code not in codes or words not in said:
                wrong[verb, uri, *environ] = (code, said)
    assert wrong == {}


@pytest.mark.patient
def test_a_guest_s_key_cannot_be_a_bridge(rundir, monkeypatch):
    with one_place(rundir, "", userid=2001, roles="admin") as found:
        curve.save(found.client, rundir / "client.cert")
        monkeypatch.setenv(CERT, str(rundir / "client.cert"))
        monkeypatch.setenv(SERVER_KEY, found.server_key)
        for verb in VERBS:
            code, said = ended(verb, rundir, found.uri)
            assert code in (1, 3)
            assert "EPERM" in said or "not permitted" in said.lower(), said
