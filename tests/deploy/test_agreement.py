"""Dockerfile, compose file, manifests, units and the settings' own defaults say the same of the same thing."""

import re

import pytest
import yaml

import broker
from broker.cli.address import SYSTEM_RUNDIR
from broker.cli.main import main
from broker.node import drain
from broker.settings import NfpSection, Settings
from gateway.cluster.shape import Shape
from gateway.settings import GatewaySettings
from tests.deploy import checks, commands, dockerfile, manifests, units
from tests.deploy.paths import DEPLOY

pytestmark = pytest.mark.tools

IMAGES = ("headgate", "spark")
"""Targets of the Dockerfile that people build."""
OVERFLOW_UID = 65534


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


@pytest.fixture(scope="module")
def members(compose):
    """Services that run our image, by name."""
    return {
        name: each
        for name, each in compose["services"].items()
        if re.search(r"headgate(-spark)?\}", each["image"])
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The manifests of production."""
    try:
        checks.program("kubectl")
    except checks.Missing as missing:
        pytest.skip(str(missing))
    return manifests.build("production", tmp_path_factory.mktemp("kubernetes"))


@pytest.fixture(scope="module")
def pods(built):
    return manifests.pods(built)


def words(member):
    """The command of a service."""
    return [str(word) for word in member["command"]]


# ---------------------------------------------------------------- who runs


def test_everything_runs_as_the_same_user_that_is_nobody_special(members, pods):
    users = {dockerfile.last(image, "USER") for image in IMAGES} | {each["user"] for each in members.values()}
    (user,) = users
    uid, gid = map(int, user.split(":"))
    assert uid not in (0, OVERFLOW_UID)  # root is everybody's owner; 65534 is whoever has no name here
    for pod in pods.values():
        context = pod["spec"]["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (uid, gid, gid)


def test_what_is_started_is_the_command_and_its_verbs(members, pods):
    for image in IMAGES:
        assert dockerfile.exec_form(dockerfile.last(image, "ENTRYPOINT")) == ["headgate"]
    given = [words(each)[0] for each in members.values()]
    given += [pod["spec"]["containers"][0]["args"][0] for pod in pods.values()]
    given.append(dockerfile.exec_form(dockerfile.last("headgate", "CMD"))[0])
    assert set(given) <= commands.VERBS
    assert {"broker", "gateway"} <= set(given)


def test_services_of_compose_have_options_that_there_are(members):
    services = [words(each) for each in members.values() if tuple(words(each)[:2]) != ("cluster", "init")]
    services = [each for each in services if each[0] != "pipeline"]
    assert len(services) >= 10
    for each in services:
        assert commands.parsed(each)


def test_verbs_of_the_pipeline_have_options_that_there_are(members, capsys):
    verbs = [words(each) for each in members.values() if words(each)[0] == "pipeline"]
    assert {each[1] for each in verbs} == {"stream", "compact"}
    for each in verbs:
        assert main([*each, "--help"]) == 0, capsys.readouterr().err


def test_names_and_version_of_the_image(members, built, pods):
    shape = Shape("demo", 1)
    for member in members.values():
        assert re.search(r"headgate(-spark)?\}+$", member["image"])
    for pod in pods.values():
        assert {each["image"] for each in manifests.containers(pod)} == {
            f"{shape.image}:{broker.__version__}"
        }
    for image in IMAGES:
        assert f"VERSION={broker.__version__}" in [
            text for name, text in dockerfile.effective(image) if name == "ARG"
        ]


# ---------------------------------------------------------------- ports


def test_ports(compose, pods):
    shape = Shape("demo", 1)
    port = int(GatewaySettings.defaults().listen[0].url.rpartition(":")[2])
    (gateway,) = pods["headgate-gateway"]["spec"]["containers"]
    assert [each["containerPort"] for each in gateway["ports"]] == [port]
    (published,) = compose["services"]["gateway"]["ports"]
    assert published == f"127.0.0.1:${{HEADGATE_PORT:-{port}}}:{port}"
    (tree,) = pods["headgate"]["spec"]["containers"]
    assert {each["name"]: each["containerPort"] for each in tree["ports"]} == {
        "tree": shape.port,
        "clients": shape.client_port,
        "metrics": example_port(),
    }


def example_port():
    """The port of `broker.metrics_listen` in the sample configuration."""
    text = (DEPLOY / "broker.toml").read_text()
    return int(re.search(r'^#metrics_listen = "http://127\.0\.0\.1:(\d+)"$', text, re.MULTILINE)[1])


def test_nothing_but_the_gateway_is_published_and_that_on_the_loopback(compose):
    published = {name: each["ports"] for name, each in compose["services"].items() if "ports" in each}
    assert set(published) == {"gateway"}
    assert all(port.startswith("127.0.0.1:") for port in published["gateway"])


def test_workers_dial_where_the_nfp_broker_listens(compose):
    port = NfpSection().endpoint.rpartition(":")[2]
    for name in ("worker-1", "worker-2"):
        assert commands.option(words(compose["services"][name]), "broker") == f"tcp://nfp:{port}"


# ---------------------------------------------------------------- places


def test_the_sockets_are_in_one_place(compose, pods):
    environment = dockerfile.environment("headgate")
    rundir = environment.get("RUNTIME_DIRECTORY") or f"{environment['XDG_RUNTIME_DIR']}/headgate"
    assert (
        rundir
        == SYSTEM_RUNDIR
        == f"/run/{units.one(units.read('headgate-broker.service'), 'RuntimeDirectory')}"
    )
    above = rundir.rpartition("/")[0]
    # what is mounted belongs to root: the broker makes its own folder in it
    (tree,) = pods["headgate"]["spec"]["containers"]
    assert above in {each["mountPath"] for each in tree["volumeMounts"]}
    assert above in {each.partition(":")[0] for each in compose["services"]["broker-1"]["tmpfs"]}


def test_the_root_is_read_only_and_the_same_places_are_not(members, pods):
    writable = {"/run", "/tmp", "/var/lib/headgate"}
    for name, member in members.items():
        assert member["read_only"]
        assert member["cap_drop"] == ["ALL"]
        assert "no-new-privileges" in member["security_opt"]
        mounted = [each.partition(":")[0] for each in member["tmpfs"]]
        mounted += [each.split(":")[1] for each in member["volumes"] if not each.endswith(":ro")]
        inside = [path for path in mounted if not any(f"{path}/".startswith(f"{top}/") for top in writable)]
        assert inside in ([], ["/keys"]), name
        assert (inside == ["/keys"]) == (name == "init")
    for pod in pods.values():
        (container,) = pod["spec"]["containers"]
        assert {
            each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")
        } <= writable


def test_settings_lie_in_one_place(pods):
    path = "/etc/headgate/broker.toml"
    assert commands.parsed(dockerfile.exec_form(dockerfile.last("headgate", "CMD"))).config == path
    assert commands.parsed(pods["headgate"]["spec"]["containers"][0]["args"]).config == path
    unit = units.read("headgate-broker.service")
    assert path in units.one(unit, "ExecStart")
    copied = [text.split()[-1] for name, text in dockerfile.effective("headgate") if name == "COPY"]
    assert path in copied


def test_no_key_can_get_into_an_image():
    copied = [text for stage in dockerfile.stages() for name, text in stage.lines if name in ("COPY", "ADD")]
    assert not [text for text in copied if re.search(r"\.cert|\.key|\bkeys/|(^| )\. ", text)]
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    assert "*" in ignored  # everything is left out but what is named
    assert "keys/" in (DEPLOY / "kubernetes" / ".gitignore").read_text().splitlines()


def test_what_the_image_is_built_from_is_let_in():
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    let_in = [line[1:] for line in ignored if line.startswith("!")]
    copied = [text for stage in dockerfile.stages() for name, text in stage.lines if name == "COPY"]
    sources = [path for text in copied if "--from" not in text for path in text.split()[:-1]]
    assert "headgate.py" in sources
    assert [path for path in sources if not path.startswith(tuple(let_in))] == []


# ---------------------------------------------------------------- health


def test_health_is_asked_without_a_shell(compose, members, pods):
    asked = [dockerfile.exec_form(dockerfile.last("headgate", "HEALTHCHECK"))]
    for member in members.values():
        test = member.get("healthcheck", {}).get("test")
        if test is not None:
            assert test[0] == "CMD"
            asked.append(test[1:])
    (container,) = pods["headgate"]["spec"]["containers"]
    asked += [
        container[name]["exec"]["command"] for name in ("startupProbe", "livenessProbe", "readinessProbe")
    ]
    for each in asked:
        assert each[0] == "headgate"
        assert each[1] in commands.VERBS
        if each[1] == "health":
            assert commands.parsed(each[1:])


def test_the_gateways_health_is_asked_where_it_listens(compose):
    asked = compose["services"]["gateway"]["healthcheck"]["test"][1:]
    assert commands.parsed(asked[1:]).url == GatewaySettings.defaults().listen[0].url


# ---------------------------------------------------------------- ends


def test_who_kills_waits_for_the_drain(members, pods):
    broker_s = drain.bound_s(Settings.defaults().broker.drain_s)
    gateway_s = GatewaySettings.defaults().gateway.drain_s
    waits = [units.seconds(each["stop_grace_period"]) for each in members.values()]
    waits += [pod["spec"]["terminationGracePeriodSeconds"] for pod in pods.values()]
    waits += [
        units.seconds(units.one(units.read(f"headgate-{name}.service"), "TimeoutStopSec"))
        for name in ("broker", "gateway")
    ]
    assert min(waits) > max(broker_s, gateway_s)


def test_the_signal_that_drains_is_the_one_that_is_sent():
    for image in IMAGES:
        assert dockerfile.last(image, "STOPSIGNAL") == "SIGTERM"
    for name in units.names():
        service = units.read(name)["Service"]
        if name.startswith("headgate-oslo-"):  # its end for good is told apart from a restart
            assert (service["KillSignal"], service["RestartKillSignal"]) == (["SIGINT"], ["SIGTERM"])
        else:
            assert "KillSignal" not in service  # systemd's is SIGTERM


def test_a_failure_is_tried_again_wherever_it_runs(members, built):
    for name, member in members.items():
        assert member["restart"] == ("unless-stopped" if name.startswith("broker-") else "on-failure")
    for pod in manifests.pods(built).values():
        assert pod["spec"].get("restartPolicy", "Always") == "Always"
