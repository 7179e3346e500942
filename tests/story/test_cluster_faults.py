"""``headgate cluster`` as a person uses it: seven brokers and a gateway, faults in them, and nothing left at the end.

     0
 ┌───┴───┐
 1       2
┌┴┐     ┌┴┐
3 4     5 6
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gateway.cli.cluster import drawing
from gateway.cluster.client import Cluster as Client
from gateway.cluster.members import Member
from gateway.cluster.state import load, sockets_of
from tests.live.brokers import eventually
from tests.live.starter import CLUSTER, ran

pytestmark = [pytest.mark.story, pytest.mark.timeout(300)]

HEADGATE = [sys.executable, "-m", "broker.cli.main"]


class Cluster:
    """One cluster, its verbs, and every process that belonged to it."""

    def __init__(self, rundir: Path) -> None:
        self.environ = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("FLUX", "HEADGATE_"))
            },
            "XDG_STATE_HOME": str(rundir / "state"),
            "XDG_RUNTIME_DIR": str(rundir / "run"),
        }
        self.rundir = rundir
        self.pids: set[int] = set()

    def verb(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess:
        """``headgate WORDS``."""
        return ran([*HEADGATE, *words], loads=CLUSTER, timeout=timeout, env=self.environ)

    def do(self, words: str) -> str:
        """``headgate cluster WORDS``, which must go well."""
        done = self.verb("cluster", *words.split())
        assert done.returncode == 0, (words, done.stdout, done.stderr, self.last_lines())
        return done.stdout

    def up(self, words: str = "") -> dict:
        seen = json.loads(self.do(f"up --json {words}"))
        self.pids |= {int(member["id"]) for member in seen["members"]}
        self.uri = seen["access"]["uri"]
        return seen

    def members(self) -> dict[str, Member]:
        """Name -> what ``status`` says of it; asked without the verb, whose start costs half a second."""
        found = {member.name: member for member in self.client().status()}
        self.pids |= {int(member.id) for member in found.values() if member.id}
        return found

    def client(self) -> Client:
        return Client(self.folder, load(self.folder))

    @property
    def folder(self) -> Path:
        return self.rundir / "state" / "headgate" / "clusters" / "headgate"

    def state(self, rank: int) -> str:
        return self.members()[f"rank-{rank}"].state

    def tree(self) -> str:
        """What the tree says of each rank, in order; as the column of ``status``."""
        seen = drawing.health(self.client().uri)
        return " ".join(seen[rank] for rank in sorted(seen))

    def pings(self, rank: int, seconds: float = 5) -> bool:
        """Whether rank 0 reaches ``rank``."""
        words = ("ping", str(rank), "--count", "1", "--uri", self.uri, "--timeout", str(seconds))
        return self.verb(*words).returncode == 0

    def supervisor(self) -> int:
        """Its pid: the parent of a member."""
        pid = self.members()["rank-0"].id
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def last_lines(self) -> str:
        logs = sorted(self.rundir.glob("state/headgate/clusters/*/logs/*"))
        return "\n".join(f"{log.name}: {log.read_text()[-600:]}" for log in logs)

    def left(self) -> list[object]:
        """What should be gone after ``down``."""
        found: list[object] = [pid for pid in self.pids if alive(pid)]
        found += [path for path in self.rundir.rglob("*") if path.is_file() or path.is_socket()]
        return found


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def start(rundir):
    """Makes a cluster; after the test, taken down, nothing of it is there."""
    made = []

    def start() -> Cluster:
        made.append(Cluster(rundir))
        return made[-1]

    yield start
    for cluster in made:
        done = cluster.verb("cluster", "down", "--all")
        assert done.returncode == 0, (done.stderr, cluster.last_lines())
        eventually(cluster.left, [], 10)


@pytest.fixture
def cluster(start):
    """One that is not up yet."""
    return start()


FULL = "full full full full full full full"


@pytest.mark.patient
def test_seven_brokers_come_up_and_survive_every_fault(cluster):
    seen = cluster.up("--size 7")
    assert [member["state"] for member in seen["members"]] == ["running"] * 8
    told = json.loads(cluster.do("status --json"))["members"]
    assert [member["tree"] for member in told] == [*FULL.split(), None]
    assert all(cluster.pings(rank) for rank in (4, 6))

    # the gateway is there, and the operator's token opens it
    url, token = seen["access"]["url"], seen["access"]["token"]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/rpc/broker.ping", b'{"seq": 7}', headers)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert json.load(answer)["seq"] == 7
    assert seen["access"]["login"].startswith(f"{url}/")

    # killed: away, and back by itself as another process
    before = cluster.members()["rank-3"].id
    cluster.do("kill 3")
    eventually(lambda: cluster.members()["rank-3"].restarts, 1, 20)
    eventually(lambda: cluster.state(3), "running", 20)
    again = cluster.members()["rank-3"]
    assert (again.restarts, again.id != before) == (1, True)
    eventually(cluster.tree, FULL, 30)
    assert cluster.pings(3)

    # killed to stay away: 1 is degraded until it is started
    cluster.do("kill 3 --stay")
    eventually(cluster.tree, "degraded degraded full lost full full full", 20)
    assert cluster.state(3) == "exited"
    assert not cluster.pings(3)
    refused = cluster.verb("cluster", "pause", "3")
    assert (refused.returncode, "rank-3 does not run" in refused.stderr) == (1, True)
    cluster.do("start 3")
    eventually(cluster.tree, FULL, 30)

    # frozen: nothing is lost, nothing answers
    cluster.do("pause 6")
    assert cluster.state(6) == "paused"
    assert cluster.tree() == "full full full full full full silent"
    assert not cluster.pings(6, 1)
    assert cluster.pings(5)
    cluster.do("resume 6")
    assert cluster.pings(6)
    assert cluster.state(6) == "running"

    # cut off: 1 takes 3 and 4 away
    cluster.do("partition 1")
    assert [cluster.state(rank) for rank in (0, 1, 3)] == ["running", "partitioned", "running"]
    assert cluster.tree() == "full silent full unknown unknown full full"
    assert cluster.pings(2)
    assert not cluster.pings(1, 1)
    assert not cluster.pings(4, 1)
    cluster.do("heal")
    assert all(cluster.pings(rank, 30) for rank in (1, 3, 4))
    eventually(cluster.tree, FULL, 30)
    cluster.do("down")
    eventually(cluster.left, [], 10)


@pytest.mark.patient
def test_the_root_comes_back_and_everybody_joins_it_again(cluster):
    cluster.up("--size 3")
    cluster.do("kill 0")
    eventually(lambda: cluster.members()["rank-0"].restarts, 1, 20)
    eventually(cluster.tree, "full full full", 60)
    assert cluster.pings(2)
    assert {member.state for member in cluster.members().values()} == {"running"}


@pytest.mark.patient
def test_what_is_frozen_and_cut_off_goes_down_too(cluster):
    cluster.up("--size 3")
    cluster.members()
    cluster.do("pause 1")
    cluster.do("partition 2")
    cluster.do("kill 0 --stay")
    cluster.do("down")
    eventually(cluster.left, [], 10)


@pytest.mark.patient
def test_a_killed_supervisor_takes_everything_with_it(cluster):
    cluster.up("--size 3")
    cluster.do("pause 2")
    supervisor = cluster.supervisor()
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: [pid for pid in cluster.pids if alive(pid)], [], 10)
    done = cluster.verb("cluster", "status")
    assert done.returncode == 3
    assert "is not up" in done.stdout
    assert "not up" in cluster.verb("cluster", "kill", "1").stderr
    cluster.up("--size 1")  # what is left of it is in nobody's way
    cluster.do("down")


@pytest.mark.slow
def test_a_long_partition_is_noticed_and_healed(cluster):
    cluster.up("--size 7")
    cluster.do("partition 1 3 4")
    # within their own side messages pass, until rank 1 notices that it has lost its parent
    words = (
        "ping",
        "3",
        "--count",
        "1",
        "--timeout",
        "5",
        "--uri",
        cluster.uri.replace("local-0", "local-1"),
    )
    assert cluster.verb(*words).returncode == 0
    eventually(cluster.tree, "degraded lost full lost lost full full", 60)
    cluster.do("heal")
    eventually(cluster.tree, FULL, 90)


# ---------------------------------------------------------------- things of the verbs


@pytest.mark.smoke
def test_wait_stays_until_it_is_told_to_leave(start):
    cluster = start()
    command = [*HEADGATE, "cluster", "up", "--size", "2", "--wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=cluster.environ) as process:
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip())
            if "Ctrl-C" in line:
                break
        sockets = load(cluster.folder).sockets
        assert lines[1:3] == [
            f"0 broker-0  local://{sockets}/local-0",
            f"└─ 1 broker-1  local://{sockets}/local-1",
        ]
        cluster.members()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    eventually(cluster.left, [], 10)


@pytest.mark.patient
def test_two_clusters_are_two(start):
    cluster = start()
    first = cluster.up("--size 1")
    second = cluster.up("--size 1 --name other")
    assert first["access"]["url"] != second["access"]["url"]
    assert first["access"]["uri"] != second["access"]["uri"]
    assert [json.loads(line)["name"] for line in cluster.do("ls --json").splitlines()] == [
        "headgate",
        "other",
    ]
    assert "is up already" in cluster.verb("cluster", "up", "--size", "1").stderr
    cluster.do("down --name other")
    assert len(cluster.do("ls --json").splitlines()) == 1


@pytest.mark.patient
def test_logs_follow_until_the_cluster_is_down(start):
    cluster = start()
    cluster.up("--size 2 --no-gateway")
    words = [*HEADGATE, "cluster", "logs", "1", "--follow"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=cluster.environ) as process:
        assert "headgate[1]" in process.stdout.readline()
        cluster.do("down")
        out, _ = process.communicate(timeout=20)
    assert "leaves" in out
    assert process.returncode == 0


@pytest.mark.patient
def test_a_start_that_fails_says_why_and_leaves_nothing(start):
    cluster = start()
    name = sockets_of(cluster.folder).name
    open_to_all = cluster.rundir / "run" / "headgate" / "clusters" / name
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    done = cluster.verb("cluster", "up", "--size", "1")
    assert done.returncode == 1
    assert "expected a directory of ours that nobody else may enter" in done.stderr
    assert not cluster.folder.exists()


@pytest.mark.slow
def test_nfp_and_oslo_are_beside_rank_0(start):
    cluster = start()
    seen = cluster.up("--size 2 --nfp --oslo")
    broker = f"--broker ipc://{load(cluster.folder).sockets}/nfp"
    more = "\n".join(seen["access"]["more"])
    assert broker in more
    assert "transport_url = zmq:///?rpc_zmq_ipc_dir=" in more
    done = cluster.verb("rpc", "nfp.services.list", "--uri", cluster.uri)
    assert done.returncode == 0, done.stderr
    done = cluster.verb("rpc", "oslo.status", "--uri", cluster.uri)
    assert done.returncode == 0, done.stderr


@pytest.mark.patient
def test_a_broker_that_is_told_to_leave_takes_those_below_it_along(start):
    """As deploy/OPERATIONS.md says; they are back once each is started again."""
    cluster = start()
    cluster.up("--size 4 --no-gateway")
    os.kill(int(cluster.members()["rank-1"].id), signal.SIGTERM)
    gone = ["running", "exited", "running", "exited"]
    eventually(lambda: [cluster.state(rank) for rank in range(4)], gone, 20)
    assert {cluster.members()[f"rank-{rank}"].why for rank in (1, 3)} == {"ended with code 0"}
    for rank in (3, 1):
        cluster.do(f"start {rank}")
    eventually(cluster.tree, "full full full full", 30)


@pytest.mark.patient
def test_of_two_that_start_the_same_cluster_one_does(start):
    """The other is refused, and does not take down what it did not make."""
    cluster = start()
    words = [*HEADGATE, "cluster", "up", "--size", "2", "--no-gateway"]
    both = [
        subprocess.Popen(
            words, env=cluster.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [each.communicate(timeout=120)[1] for each in both]
    assert sorted(each.returncode for each in both) == [0, 78], said
    assert any("being started" in text or "up already" in text for text in said)
    assert [cluster.state(rank) for rank in range(2)] == ["running", "running"]
