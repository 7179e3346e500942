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
verbs = pytest.mark.parametrize(
    "verb", ["nfp broker", "oslo bridge", pytest.param("oslo proxy", marks=pytest.mark.patient)]
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


@verbs
@pytest.mark.parametrize(("there", "missing"), [(CERT, SERVER_KEY), (SERVER_KEY, CERT)])
def test_half_of_the_keys_is_a_wrong_configuration(rundir, monkeypatch, verb, there, missing):
    monkeypatch.setenv(there, "/nowhere")
    code, said = ended(verb, rundir, "tcp://127.0.0.1:1")
    assert (code, f"{missing} is not set; a CURVE connection needs {CERT} and {SERVER_KEY}" in said) == (
        78,
        True,
    )


@verbs
def test_a_certificate_that_is_not_there_is_named(rundir, monkeypatch, verb):
    monkeypatch.setenv(CERT, f"{rundir}/none.cert")
    monkeypatch.setenv(SERVER_KEY, curve.generate().public_key)
    code, said = ended(verb, rundir, "tcp://127.0.0.1:1")
    assert (code, f"{rundir}/none.cert" in said) == (78, True)


@verbs
def test_without_keys_the_refusal_says_how_to_name_them(rundir, place, verb):
    code, said = ended(verb, rundir, place.uri)
    assert code in (1, 3)
    assert f"no CURVE keys are named, see {CERT} and {SERVER_KEY}" in said


@verbs
def test_plaintext_to_another_machine_is_refused_and_says_so(rundir, verb):
    code, said = ended(verb, rundir, "tcp://192.0.2.1:8051")
    assert code == 78
    assert "plaintext off loopback" in said
    assert f"see {CERT} and {SERVER_KEY}" in said


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
