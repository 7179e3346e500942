"""The engines podman and docker, against a program that answers as they do and notes what it is asked for."""

import json
import sys
from pathlib import Path

import pytest

from broker.errors import ConfigError, HeadgateError
from gateway.cluster import compose, containers, inspection, state
from gateway.cluster.containers import Containers, compose_command
from gateway.cluster.engine import Unsupported
from gateway.cluster.inspection import member_of, rank_of, token_in
from gateway.cluster.shape import Shape

NAME = "lab"
OTHERS = {containers.PROJECT: NAME}
OURS = OTHERS | {compose.LABEL: NAME}
PROGRAM = """\
#!{python} -SE
import json, os, sys
here, words = {here!r}, sys.argv[1:]
def read(name):
    with open(here + "/" + name) as file:
        return file.read()
def keep(name, value):
    with open(here + "/" + name, "w") as file:
        json.dump(value, file)
seen, more = json.loads(read("seen.json")), json.loads(read("more.json"))
with open(here + "/asked", "a") as file:
    file.write(json.dumps(words) + "\\n")
named = {{each["Id"]: each for each in seen}}
def labelled(kind):
    wanted = dict(each.removeprefix("label=").split("=", 1) for each in words if each.startswith("label="))
    found = {{one: each["Config"]["Labels"] for one, each in named.items()}} if kind == "ps" else more[kind]
    return [one for one, labels in found.items() if wanted.items() <= labels.items()]
if words[0] == "ps" or words[1:2] == ["ls"]:
    print("\\n".join(labelled(words[0])))
elif words[0] == "rm":
    keep("seen.json", [each for each in seen if each["Id"] not in words])
elif words[1:2] == ["rm"]:
    more[words[0]] = {{one: labels for one, labels in more[words[0]].items() if one not in words}}
    keep("more.json", more)
elif words[0] == "inspect":
    print(json.dumps([named[each] for each in words[3:]]))
elif words[0] in ("pause", "unpause", "start", "kill"):
    status = {{"pause": "paused", "unpause": "running", "start": "running", "kill": "exited"}}[words[0]]
    if words[-1] not in named:
        sys.exit("Error: no such container")
    named[words[-1]]["State"]["Status"] = status
    keep("seen.json", seen)
elif words[:2] == ["network", "connect"]:
    named[words[5]]["NetworkSettings"]["Networks"][words[4]] = {{}}
    keep("seen.json", seen)
elif words[:2] == ["network", "disconnect"]:
    del named[words[3]]["NetworkSettings"]["Networks"][words[2]]
    keep("seen.json", seen)
elif words[0] == "logs":
    print("keys made\\ntoken hgt_00ff00ff00ff_secret" if words[-1] == "id-init" else "one\\ntwo")
elif words[0] == "exec":
    print(json.dumps({{"tree": {{"status": read("tree")}}}}))
elif words[:2] == ["compose", "version"] and not os.path.exists(here + "/compose"):
    sys.exit("docker: 'compose' is not a docker command")
"""
"""Starts without the site's packages and imports little, for a test starts it a dozen times."""


def container(service, *, status="running", networks=("lab_tree",), **more):
    """What ``inspect`` says, as far as it is read."""
    return {
        "Id": f"id-{service}",
        "Name": f"/lab-{service}-1",
        "RestartCount": 2,
        "State": {
            "Status": status,
            "StartedAt": "2026-01-02T03:04:05.123456789Z",
            "FinishedAt": "0001-01-01T00:00:00Z",
            "ExitCode": 0,
            **more.get("state", {}),
        },
        "Config": {
            "Hostname": service,
            "Labels": more.get("labels", OURS) | {inspection.SERVICE: service},
        },
        "NetworkSettings": {"Networks": {name: {} for name in networks}, "Ports": more.get("ports", {})},
    }


class Fake:
    """The program ``docker`` on the path."""

    def __init__(self, folder: Path, name: str = "docker") -> None:
        self.folder = folder
        self.engine = Containers(name, folder / NAME)
        program = folder / name
        program.write_text(PROGRAM.format(python=sys.executable, here=str(folder)))
        program.chmod(0o755)
        (folder / "compose").touch()
        self.tree("full")
        self.more()

    def tree(self, status):
        (self.folder / "tree").write_text(status)

    def runs(self, *found):
        (self.folder / "seen.json").write_text(json.dumps(found))
        return self.engine

    def more(self, **kinds):
        """Networks and volumes with their labels."""
        found = {"network": {}, "volume": {}, **kinds}
        (self.folder / "more.json").write_text(json.dumps(found))

    def left(self):
        """Names of all that is there."""
        seen, more = (json.loads((self.folder / name).read_text()) for name in ("seen.json", "more.json"))
        return {each["Id"] for each in seen} | {*more["network"], *more["volume"]}

    def asked(self, *verbs):
        """What the program was told to do, of these verbs."""
        lines = (self.folder / "asked").read_text().splitlines()
        return [words for words in map(json.loads, lines) if words[0] in verbs]

    def networks(self):
        seen = json.loads((self.folder / "seen.json").read_text())
        return {each["Id"]: set(each["NetworkSettings"]["Networks"]) for each in seen}


@pytest.fixture
def docker(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(containers, "RESTART_S", 0.0)
    fake = Fake(tmp_path)
    state.save(tmp_path / NAME, state.new(Shape(NAME, 3), "docker"))
    fake.runs(*(container(f"broker-{rank}") for rank in range(3)))
    return fake


# ---------------------------------------------------------------- what inspect says


def test_a_broker_that_runs():
    member = member_of(container("broker-2"), NAME)
    assert (member.name, member.rank, member.state, member.restarts) == ("rank-2", 2, "running", 2)
    assert member.since == pytest.approx(1767323045.123456)
    assert member.why == ""


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("paused", "paused"),
        ("created", "starting"),
        ("restarting", "starting"),
        ("exited", "exited"),
        ("dead", "exited"),
    ],
)
def test_states(status, state):
    assert member_of(container("broker-1", status=status), NAME).state == state


def test_a_broker_that_is_not_on_the_network_of_the_tree_is_partitioned_unless_paused():
    assert member_of(container("broker-1", networks=("lab_island",)), NAME).state == "partitioned"
    assert member_of(container("broker-1", networks=()), NAME).state == "partitioned"
    assert member_of(container("broker-1", status="paused", networks=()), NAME).state == "paused"
    assert member_of(container("nfp", networks=("lab_jobs",)), NAME).state == "running"


@pytest.mark.parametrize(
    ("code", "why"),
    [(137, "killed by SIGKILL"), (143, "killed by SIGTERM"), (78, "exit code 78"), (250, "exit code 250")],
)
def test_why_it_has_exited(code, why):
    ended = {"ExitCode": code, "FinishedAt": "2026-01-02T03:04:06.5+00:00"}
    member = member_of(container("broker-1", status="exited", state=ended), NAME)
    assert member.why == why
    assert member.since == 1767323046.5


def test_the_gateway_tells_where_it_is_published():
    ports = {"8280/tcp": [{"HostIp": "127.0.0.1", "HostPort": "18280"}], "9000/tcp": None}
    assert member_of(container("gateway", ports=ports), NAME).uri == "http://127.0.0.1:18280"
    assert member_of(container("gateway", ports={"8280/tcp": None}), NAME).uri == ""


def test_ranks_and_tokens():
    assert [rank_of(name) for name in ("broker-0", "broker-", "broker-x", "redis")] == [0, None, None, None]
    assert token_in('{"token":"hgt_1_2"}\nhgt_3_4') == "hgt_1_2"
    assert token_in("nothing new") == ""


# ---------------------------------------------------------------- verbs


def test_status_has_brokers_first_and_no_init(docker):
    engine = docker.runs(
        container("gateway"),
        container("init", status="exited"),
        container("broker-10"),
        container("broker-2"),
    )
    assert [member.name for member in engine.status()] == ["rank-2", "rank-10", "gateway"]


def test_nothing_is_up(docker):
    assert docker.runs().status() == []


def test_a_killed_rank_is_started_again_unless_it_is_to_stay_away(docker):
    docker.engine.kill(1)
    docker.engine.kill(2, stay=True)
    assert docker.asked("kill", "start") == [
        ["kill", "--signal", "KILL", "id-broker-1"],
        ["start", "id-broker-1"],
        ["kill", "--signal", "KILL", "id-broker-2"],
    ]
    docker.engine.start(2)
    assert docker.asked("start")[-1] == ["start", "id-broker-2"]


def test_pausing_twice_is_pausing_once(docker):
    for _ in range(2):
        docker.engine.pause(1)
    for _ in range(2):
        docker.engine.resume(1)
    assert docker.asked("pause", "unpause") == [["pause", "id-broker-1"], ["unpause", "id-broker-1"]]


def test_partition_moves_one_side_to_an_island_and_heal_moves_it_back(docker):
    docker.engine.partition([1, 2])
    assert docker.networks() == {
        "id-broker-0": {"lab_tree"},
        "id-broker-1": {"lab_island"},
        "id-broker-2": {"lab_island"},
    }
    connected = ["network", "connect", "--alias", "broker-1", "lab_island", "id-broker-1"]
    assert connected in docker.asked("network")
    docker.engine.partition([2])
    assert docker.networks()["id-broker-1"] == {"lab_tree"}
    assert docker.networks()["id-broker-2"] == {"lab_island"}
    docker.engine.heal()
    assert set(map(frozenset, docker.networks().values())) == {frozenset({"lab_tree"})}
    before = len(docker.asked("network"))
    docker.engine.heal()
    assert len(docker.asked("network")) == before, "there was nothing to do"


def test_a_paused_rank_cannot_be_cut_off_and_nothing_is_changed(docker):
    docker.engine.pause(1)
    with pytest.raises(Unsupported, match="broker-1"):
        docker.engine.partition([1, 2])
    assert set(map(frozenset, docker.networks().values())) == {frozenset({"lab_tree"})}


@pytest.mark.parametrize("verb", ["kill", "start", "pause", "resume"])
def test_a_rank_that_is_not_there(docker, verb):
    with pytest.raises(ConfigError, match="saw 3, expected 0 to 2"):
        getattr(docker.engine, verb)(3)
    with pytest.raises(ConfigError, match="saw -1"):
        docker.engine.partition([0, -1])


def test_a_rank_without_a_container(docker):
    with pytest.raises(HeadgateError, match="no container of broker-1"):
        docker.runs(container("broker-0")).pause(1)


def test_logs_of_a_rank_and_of_the_gateway(docker):
    assert list(docker.engine.logs(1)) == ["one", "two"]
    docker.runs(container("gateway"))
    assert list(docker.engine.logs(None)) == ["one", "two"]
    assert docker.asked("logs") == [["logs", "id-broker-1"], ["logs", "id-gateway"]]


def test_access_names_the_dashboard_the_token_of_init_and_the_way_in(docker):
    ports = {"8280/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8280"}]}
    engine = docker.runs(
        container("broker-0"), container("init", status="exited"), container("gateway", ports=ports)
    )
    access = engine.access()
    assert access.url == "http://127.0.0.1:8280"
    assert access.token == "hgt_00ff00ff00ff_secret"
    assert access.run == ("docker", "exec", "lab-broker-0-1")


# ---------------------------------------------------------------- up and down


def test_up_writes_the_file_of_the_shape_and_waits_for_the_tree(docker, tmp_path):
    shape = Shape(NAME, 3, nfp=True)
    docker.engine.up(shape, tmp_path / NAME / state.KEYS)
    file = tmp_path / NAME / compose.FILE
    assert file.read_text() == compose.render(shape, labelled=True)
    assert (tmp_path / NAME / compose.TASKS).stat().st_mode & 0o777 == 0o644
    assert docker.asked("compose")[-1] == [
        "compose",
        "--project-name",
        NAME,
        "--file",
        str(file),
        "up",
        "--detach",
    ]
    assert docker.asked("exec") == [["exec", "id-broker-0", "headgate", "status", "--json"]]


def test_up_tells_what_is_missing(docker, tmp_path, monkeypatch):
    docker.tree("partial")
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr(containers.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(containers.time, "sleep", lambda _s: None)
    with pytest.raises(TimeoutError, match=r"not all of 3 ranks .* rank 0 says partial"):
        docker.engine.up(Shape(NAME, 3), tmp_path / NAME / state.KEYS)


def test_down_removes_what_carries_the_label(docker):
    docker.engine.pause(1)
    docker.engine.down()
    assert [words[0] for words in docker.asked("unpause", "kill", "rm")] == ["unpause", "kill", "rm"]
    assert docker.asked("rm") == [["rm", "--force", "--volumes", "id-broker-0", "id-broker-1", "id-broker-2"]]
    assert [words[:2] for words in docker.asked("network", "volume")] == [["network", "ls"], ["volume", "ls"]]


def test_another_project_of_the_same_name_is_not_touched(docker, tmp_path):
    theirs = container("redis", labels=OTHERS)
    engine = docker.runs(container("broker-0"), container("broker-1", status="paused"), theirs)
    docker.more(
        network={"lab_tree": OURS, "lab_island": {compose.LABEL: NAME}, "lab_web": OTHERS},
        volume={"lab_keys": OURS, "lab_data": OTHERS, "else_keys": {compose.LABEL: "else"}},
    )
    assert [member.name for member in engine.status()] == ["rank-0", "rank-1"]
    engine.down()
    assert docker.left() == {"id-redis", "lab_web", "lab_data", "else_keys"}
    assert not [words for words in docker.asked("kill", "rm", "unpause") if "id-redis" in words]


@pytest.mark.parametrize(
    ("kind", "name"), [("container", "id-web"), ("network", "lab_web"), ("volume", "lab_data")]
)
def test_up_does_not_join_another_project_of_the_same_name(docker, tmp_path, kind, name):
    if kind == "container":
        docker.runs(container("web", labels=OTHERS))
    else:
        docker.more(**{kind: {name: OTHERS}})
    with pytest.raises(
        ConfigError, match=rf"docker has a {kind} \({name}\) of another project lab, .* --name"
    ):
        docker.engine.up(Shape(NAME, 3), tmp_path / NAME / state.KEYS)
    assert not [words for words in docker.asked("compose") if "up" in words]
    docker.engine.down()  # as the verb does when a start fails
    assert name in docker.left()


@pytest.mark.parametrize("others", [True, False])
def test_a_pod_is_removed_when_nothing_is_left_in_it(docker, tmp_path, others):
    theirs = [container("redis", labels=OTHERS, status="exited")] if others else []
    podman = Fake(tmp_path, "podman")
    podman.runs(container("broker-0"), *theirs).down()
    assert podman.asked("pod") == ([] if others else [["pod", "rm", "pod_lab"]])
    assert podman.left() == ({"id-redis"} if others else set())


def test_down_without_anything_is_harmless(docker):
    docker.runs().down()
    assert docker.asked("rm") == []


def test_a_program_that_fails_is_quoted(docker):
    engine = docker.runs(container("broker-0"))
    with pytest.raises(HeadgateError, match="docker unpause: Error: no such container"):
        engine._ask("unpause", "nobody")


def test_compose_is_looked_for(docker, tmp_path, monkeypatch):
    assert compose_command("docker") == [str(tmp_path / "docker"), "compose"]
    (tmp_path / "compose").unlink()
    with pytest.raises(ConfigError, match="plugin"):
        compose_command("docker")
    with pytest.raises(ConfigError, match="podman: the program is not there"):
        compose_command("podman")
    for name in ("podman", "podman-compose"):
        (tmp_path / name).write_bytes((tmp_path / "docker").read_bytes())
        (tmp_path / name).chmod(0o755)
    assert compose_command("podman") == [str(tmp_path / "podman-compose")]
