"""The pods of the small overlay, played on this machine: in any order they become a tree, each with its own key alone,
and they leave in time. `tests.deploy.kubelet` says what is played and what is not.
"""

import contextlib

import pytest

from tests.deploy import checks, kubelet, manifests
from tests.live.brokers import eventually
from tests.netlab import NetLab

GATEWAY = 3
"""Its host; brokers have those of their ranks."""

pytestmark = [
    pytest.mark.story,
    pytest.mark.skipif(bool(kubelet.lacking()), reason=f"optional: {kubelet.lacking()}"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    try:
        checks.program("kubectl")
    except checks.Missing as missing:
        pytest.skip(str(missing))
    return manifests.build("small", tmp_path_factory.mktemp("kubernetes"))


@pytest.fixture
def pods(built, rundir):
    """Pods by name, none of them started."""
    rundir.chmod(0o755)
    templates = manifests.pods(built)
    tree = manifests.the(built, "StatefulSet", "headgate")
    namespace, service = tree["metadata"]["namespace"], tree["spec"]["serviceName"]
    size = tree["spec"]["replicas"]
    try:
        with NetLab(size + 1) as lab:
            names = "127.0.0.1 localhost\n" + "".join(
                f"{lab.ip(rank)} headgate-{rank}.{service}.{namespace}.svc headgate-{rank}\n"
                for rank in range(size)
            )
            found = {}
            for host in range(size + 1):
                name = f"headgate-{host}" if host < size else "headgate-gateway-5f7c"
                template = templates["headgate" if host < size else "headgate-gateway"]
                folder = rundir / name
                folder.mkdir()
                index = host if host < size else None
                found[name] = kubelet.Pod(lab, host, name, index, template, built, names, folder)
            yield found
    except OSError as error:
        pytest.skip(f"optional: no network namespaces ({error})")


def healthy(pod, kind):
    return pod.probe(kind).returncode == 0


@pytest.mark.patient
def test_pods_become_a_tree_in_any_order_and_leave_in_time(pods):
    brokers = [pods[f"headgate-{rank}"] for rank in range(3)]
    gateway = pods["headgate-gateway-5f7c"]
    running = {}
    with contextlib.ExitStack() as ended:
        for pod in (gateway, brokers[2], brokers[1]):
            running[pod.name] = pod.start()
            ended.callback(running[pod.name].wait, 5)
            ended.callback(running[pod.name].kill)

        # without the root all of them live, and none is ready
        eventually(lambda: healthy(brokers[1], "startupProbe"), timeout=60)
        assert healthy(brokers[1], "livenessProbe")
        assert not healthy(brokers[1], "readinessProbe")
        eventually(lambda: gateway.fetch("http://127.0.0.1:8280/livez")[0] == 200, timeout=60)
        assert gateway.fetch("http://127.0.0.1:8280/readyz")[0] == 503

        running[brokers[0].name] = brokers[0].start()
        ended.callback(running[brokers[0].name].wait, 5)
        ended.callback(running[brokers[0].name].kill)
        for pod in brokers:
            eventually(lambda pod=pod: healthy(pod, "readinessProbe"), timeout=40)
        eventually(lambda: gateway.fetch("http://127.0.0.1:8280/readyz")[0] == 200, timeout=40)

        # each has its own key, and that alone
        for rank, pod in enumerate(brokers):
            listed = pod.execute("sh", "-c", "stat -c '%n %a %u' /etc/headgate/*").stdout.splitlines()
            assert listed == [
                "/etc/headgate/broker.toml 400 10001",
                f"/etc/headgate/rank-{rank}.cert 400 10001",
            ]
        status = brokers[2].execute("headgate", "ping", "--count", "1", "0!broker")
        assert status.returncode == 0, status.stdout

        # the port of the counts answers other hosts, and tells no more than the counts
        code, text = gateway.fetch(f"http://{gateway.lab.ip(1)}:9464/metrics")
        assert code == 200
        assert "headgate_links" in text

        for pod in (brokers[0], gateway, brokers[1], brokers[2]):
            running[pod.name].terminate()
        for pod in (*brokers, gateway):
            code = running[pod.name].wait(pod.spec["terminationGracePeriodSeconds"])
            assert code == 0, pod.log.read_text()[-2000:]
