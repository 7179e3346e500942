"""A cluster from the compose file, up for real: calls, faults by the engine's own commands, nothing left of it.

One cluster of seven brokers with all wings serves all tests; each leaves it whole. What people type for Docker is run
with Podman here: a program `docker` hands it on.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request

import pytest

from gateway.cluster import compose
from gateway.cluster.shape import Shape
from tests.containers import images
from tests.containers.images import podman
from tests.live.pages import Page
from tests.live.ports import free_ports

SIZE = 7
SETTLE_S = 60.0
DOCKER = f"""\
#!/bin/sh
[ "$1" = compose ] || exec podman "$@"
shift
exec {sys.executable} -m podman_compose "$@"
"""
SERVER = """\
import json, sys
from broker.oslo.contract import Address, Settings
from broker.oslo.node import client_ipc_dir
from broker.oslo.client import open_session
port = open_session(Settings(ipc_dir=client_ipc_dir()))
intake = port.listen(Address("openstack", "stock", "shelf"))
print("ready", flush=True)
for _ in range(2):
    item = intake.get(60.0)
    asked = json.loads(item.body)["message"]
    item.reply(json.dumps({"result": {"method": asked["method"], "args": asked["args"]}, "failure": None}).encode())
port.close()
"""


class Project:
    """A compose file, its engine, and what is asked inside."""

    def __init__(self, folder, image) -> None:
        self.folder = folder
        self.figures: dict[str, float] = {}
        programs = folder / "programs"
        programs.mkdir()
        (programs / "docker").write_text(DOCKER)
        (programs / "docker").chmod(0o755)
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.environ = images.environ() | {
            "PATH": f"{programs}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
            "HEADGATE_IMAGE": image,
            "HEADGATE_PORT": str(port),
        }

    def run(self, script: str, check: bool = True) -> str:
        """What a script of the shell writes, beside the compose file."""
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert not check or done.returncode == 0, (script, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def joined(self) -> None:
        """Until every rank has been seen, as the guide says."""
        self.run("until docker compose exec -T broker-0 headgate health; do sleep 1; done")

    def container(self, service: str) -> str:
        return f"hgtest_{service}_1"

    def state(self, service: str) -> str:
        return podman("inspect", "--format", "{{.State.Status}}", self.container(service)).strip()

    def ask(self, service: str, *words: str, check: bool = True) -> str:
        return podman("exec", self.container(service), "headgate", *words, check=check)

    def tree(self) -> dict[int, str]:
        """Rank -> what rank 0 and those below it tell."""
        told = json.loads(self.ask("broker-0", "status", "--json"))["tree"]
        found: dict[int, str] = {}

        def walk(node):
            found[node["rank"]] = node["status"]
            for child in node.get("children", ()):
                walk(child)

        walk(told)
        return found

    def until(self, expected, what: str) -> None:
        """Until ``expected`` of the tree is true."""
        began = time.monotonic()
        seen: object = None
        while time.monotonic() - began < SETTLE_S:
            try:
                seen = self.tree()
                if expected(seen):
                    self.figures[what] = round(time.monotonic() - began, 1)
                    return
            except (AssertionError, ValueError) as error:
                seen = error
            time.sleep(0.3)
        raise AssertionError(f"{what}: not within {SETTLE_S:.0f} s, last seen {seen}")

    def whole(self, what: str) -> None:
        self.until(lambda tree: tree == dict.fromkeys(range(SIZE), "full"), what)

    def token(self) -> str:
        """What ``init`` printed when it made the keys."""
        return re.search(r"hgt_[\w-]+", self.run("docker compose logs init"))[0]


def left_of(name: str) -> list[str]:
    """Networks, volumes, pods and containers that carry the name of a project."""
    listed = [podman(kind, "ls") for kind in ("network", "volume", "pod")]
    return [line for text in [*listed, podman("ps", "--all")] for line in text.splitlines() if name in line]


@pytest.fixture(scope="module")
def cluster(image, tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("hgtest"), image)
    compose.write(Shape("hgtest", SIZE, nfp=True, oslo=True), project.folder)
    project.run("docker compose down -v", check=False)
    try:
        began = time.monotonic()
        project.run("docker compose up -d")
        project.joined()
        project.figures["up"] = round(time.monotonic() - began, 1)
        yield project
    finally:
        print("seconds:", json.dumps(project.figures))
        project.run("docker compose down -v")
    assert left_of("hgtest") == []


def test_the_commands_of_the_guide(image, tmp_path):
    """All that it shows for containers, as it stands there."""
    project = Project(tmp_path, image)
    try:
        script = Page("guides/clusters.md").block("sh", "docker compose up")
        assert "lab-broker-1-1" in script
        out = project.run(script.replace("lab-broker-1-1", "lab_broker-1_1"))
    finally:
        project.run("cd lab && docker compose down -v", check=False)
    assert "token of the operator" in out
    assert left_of("lab_") == []


def test_every_member_runs(cluster):
    services = {f"broker-{rank}" for rank in range(SIZE)} | {"gateway", "nfp", "redis"}
    services |= {*compose.WORKERS, *compose.PROXIES}
    assert {service: cluster.state(service) for service in services} == dict.fromkeys(services, "running")


def test_a_call_over_the_tree_from_the_web(cluster):
    token = cluster.token()
    for rank in (0, 3, 6):
        request = urllib.request.Request(
            f"{cluster.url}/v1/rpc/broker.ping?nodeid={rank}",
            data=b'{"seq": 1}',
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["rank"] == rank


def test_the_dashboard_is_served(cluster):
    with urllib.request.urlopen(cluster.url, timeout=10) as answer:
        assert b"<html" in answer.read().lower()


def test_a_job_of_nfp_by_topic(cluster):
    asked = json.dumps({"kwargs": {"who": "a container"}, "target": "all", "timeout": 20})
    deadline = time.monotonic() + SETTLE_S
    while True:
        told = cluster.ask("broker-5", "rpc", "nfp.demo.hello", asked, check=False)
        results = json.loads(told)["results"] if told else {}
        if len(results) == 2:
            break
        assert time.monotonic() < deadline, told
        time.sleep(0.5)
    assert sorted(str(result) for result in results.values())
    assert "hello a container, from worker-1" in told
    assert "hello a container, from worker-2" in told


def test_a_call_of_oslo_from_one_node_to_the_other(cluster):
    server = podman("exec", "--detach", cluster.container("oslo-2"), "python", "-c", SERVER)
    assert server
    words = (
        "oslo",
        "call",
        "stock",
        "reserve",
        "item=bolt",
        "count=4",
        "--wait",
        "--timeout",
        "20",
        "--curve-cert",  # the other node lets in whoever has the proxies' own
        "/keys/oslo.cert",
        "--json",
    )
    assert json.loads(cluster.ask("oslo-1", *words)) == {
        "method": "reserve",
        "args": {"item": "bolt", "count": 4},
    }
    told = cluster.ask("broker-6", "rpc", "oslo.openstack.stock.count", '{"args": {"n": 2}}')
    assert json.loads(told)["result"] == {"method": "count", "args": {"n": 2}}


def test_a_killed_rank_is_away_until_it_is_started(cluster):
    cluster.run("docker compose kill broker-3")
    assert cluster.state("broker-3") == "exited"
    cluster.until(lambda tree: tree[3] in ("lost", "offline"), "kill 3: seen as away")
    cluster.run("docker compose start broker-3")
    cluster.whole("start 3: whole")


def test_the_root_is_killed_and_everybody_joins_again(cluster):
    cluster.run("docker compose kill broker-0 && docker compose start broker-0")
    cluster.whole("kill 0: whole")
    told = json.loads(cluster.ask("broker-6", "ping", "--count", "1", "--json", "0").splitlines()[0])
    assert told["rank"] == 0
    test_a_call_over_the_tree_from_the_web(cluster)


def test_a_paused_rank_is_seen_and_goes_on(cluster):
    cluster.run("docker compose pause broker-2")
    assert cluster.state("broker-2") == "paused"
    cluster.until(lambda tree: tree[0] != "full", "pause 2: seen")
    cluster.run("docker compose unpause broker-2")
    cluster.whole("unpause 2: whole")


def test_a_rank_off_the_network_takes_its_subtree_away_until_it_is_back(cluster):
    cluster.run("docker network disconnect hgtest_tree hgtest_broker-1_1")
    cluster.until(lambda tree: tree[0] != "full" and tree.get(1) != "full", "partition 1: seen")
    assert cluster.tree()[2] == "full"
    cluster.run("docker network connect --alias broker-1 hgtest_tree hgtest_broker-1_1")
    cluster.whole("heal: whole")


def test_keys_are_not_readable_from_outside_their_user(cluster):
    listing = podman(
        "exec",
        cluster.container("broker-1"),
        "python",
        "-c",
        "import os; print(oct(os.stat('/keys').st_mode))",
    )
    assert listing.strip().endswith("700")
    assert (
        podman(
            "exec",
            "--user",
            "23456",
            cluster.container("broker-1"),
            "python",
            "-c",
            "open('/keys/rank-1.cert')",
            check=False,
        )
        == ""
    )


def test_brokers_that_start_before_their_keys_are_made_come_up_once_they_are(image, tmp_path):
    project = Project(tmp_path, image)
    compose.write(Shape("hgorder", 3, gateway=False), tmp_path)
    try:
        project.run("docker compose up -d broker-2 broker-1 broker-0")
        time.sleep(3)
        for rank in range(3):
            seen = podman("inspect", "--format", "{{.RestartCount}}", f"hgorder_broker-{rank}_1")
            assert int(seen), "it left, and was started again"
        project.run("docker compose up -d init")
        project.joined()
    finally:
        project.run("docker compose down -v")
