"""What Kustomize makes of deploy/kubernetes: the tree finds itself, keys stay with their owners, nobody is let in by
mistake, pods leave in time.
"""

import base64
import functools
import tempfile
from pathlib import Path

import pytest

from broker.cli.main import main
from broker.node import drain
from broker.settings import LimitsSection, Settings
from broker.settings import loads as loads_broker
from gateway.cluster.files import OPERATOR
from gateway.settings import GatewaySettings
from gateway.settings import loads as loads_gateway
from tests.deploy import checks, commands, manifests
from tests.deploy.every import every

pytestmark = pytest.mark.tools

GRACE_S = 20
"""What a pod has on top of its drain before it is killed."""
UNITS = {"Mi": 2**20, "Gi": 2**30}


class Overlay:
    """The manifests of one case, with keys of their own."""

    def __init__(self, case):
        self.case = self.name = case
        with tempfile.TemporaryDirectory(prefix="headgate-deploy-") as folder:
            self.built = manifests.build(case, Path(folder))
        self.production = [] if case == "small" else self.built
        self.pods = manifests.pods(self.built)
        (self.namespace,) = manifests.of_kind(self.built, "Namespace")
        self.mounted = {name: self._keys(pod) for name, pod in self.pods.items()}

    def _keys(self, pod):
        """What the init container of a pod finds in /keys: name -> text."""
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "keys"]
        sources = volume["projected"]["sources"] if "projected" in volume else [{"secret": volume["secret"]}]
        return {key: text for source in sources for key, text in texts(self.built, source).items()}


@functools.cache
def overlays():
    try:
        checks.program("kubectl")
    except checks.Missing as missing:
        pytest.skip(str(missing))
    return [Overlay(case) for case in manifests.CASES]


in_every_overlay = every(overlays)


def texts(built, source):
    """The files of one source of a volume."""
    if "configMap" in source:
        return manifests.the(built, "ConfigMap", source["configMap"]["name"])["data"]
    secret = source["secret"]
    data = manifests.the(built, "Secret", secret.get("name") or secret["secretName"])["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def size_of(built):
    return manifests.the(built, "StatefulSet", "headgate")["spec"]["replicas"]


def amount(text):
    return int(text[:-2]) * UNITS[text[-2:]]


def mounts(container):
    return {each["mountPath"]: each for each in container["volumeMounts"]}


def own(pod):
    """The one container that stays; beside it may be one that ships its journal."""
    (container,) = (each for each in pod["spec"]["containers"] if each["name"] != "ship")
    return container


def before(pod):
    """The one that runs before it."""
    (container,) = pod["spec"]["initContainers"]
    return container


# ---------------------------------------------------------------- the tree finds itself


@in_every_overlay
def test_each_pod_is_the_rank_of_its_name(built, mounted, namespace):
    settings = loads_broker(mounted["headgate"]["broker.toml"], "broker.toml")
    tree = manifests.the(built, "StatefulSet", "headgate")
    assert settings.size == size_of(built)
    for rank in range(settings.size):
        pod = f"{tree['metadata']['name']}-{rank}"
        assert settings.at_rank(hostname=pod).broker.rank == rank
        assert (
            settings.host(rank).address == f"tcp://{pod}.{tree['spec']['serviceName']}.{namespace}.svc:8050"
        )


@in_every_overlay
def test_names_are_there_before_anybody_is_ready_and_pods_come_all_at_once(built):
    tree = manifests.the(built, "StatefulSet", "headgate")["spec"]
    service = manifests.the(built, "Service", tree["serviceName"])["spec"]
    assert tree["podManagementPolicy"] == "Parallel"
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)


@in_every_overlay
def test_only_readiness_depends_on_others(pods):
    probes = own(pods["headgate"])
    live, ready = (["headgate", "health", word] for word in ("--live", "--ready"))
    assert probes["startupProbe"]["exec"]["command"] == live
    assert probes["livenessProbe"]["exec"]["command"] == live
    assert probes["readinessProbe"]["exec"]["command"] == ready
    web = own(pods["headgate-gateway"])
    assert (
        web["startupProbe"]["httpGet"]
        == web["livenessProbe"]["httpGet"]
        == {"path": "/livez", "port": "http"}
    )
    assert web["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    for container in (probes, web):
        # a probe starts an interpreter: the default of one second is too short on a busy machine
        assert all(container[name]["timeoutSeconds"] >= 5 for name in ("startupProbe", "livenessProbe"))


@in_every_overlay
def test_the_gateway_dials_rank_0_with_its_own_key(pods, mounted, namespace):
    settings = loads_gateway(mounted["headgate-gateway"]["gateway.toml"], "gateway.toml")
    assert settings.gateway.upstream == f"tcp://headgate-0.headgate-tree.{namespace}.svc:8051"
    named = {settings.gateway.upstream_cert, settings.gateway.upstream_key, settings.tokens.file}
    assert {name.rpartition("/")[2] for name in named} <= set(mounted["headgate-gateway"])
    (listen,) = settings.listen
    assert listen.url == f"http://0.0.0.0:{own(pods['headgate-gateway'])['ports'][0]['containerPort']}"
    assert [user.name for user in settings.users] == [OPERATOR]


@in_every_overlay
def test_the_gateway_is_one_of_the_brokers_clients(pods, mounted):
    settings = loads_broker(mounted["headgate"]["broker.toml"], "broker.toml")
    (client,) = settings.clients
    assert client.public_key in mounted["headgate-gateway"]["gateway.cert"]
    assert (client.roles, client.userid) == (
        ("owner",),
        pods["headgate"]["spec"]["securityContext"]["runAsUser"],
    )
    assert settings.host(0).public_key in mounted["headgate-gateway"]["rank-0.pub"]


# ---------------------------------------------------------------- keys


@in_every_overlay
def test_a_pod_is_given_its_own_key_and_nobody_can_read_it(built, pods, mounted):
    certificates = {name for name in mounted["headgate"] if name.endswith(".cert")}
    assert certificates == {f"rank-{rank}.cert" for rank in range(size_of(built))}
    for name, pod in pods.items():
        command, after = before(pod)["command"], own(pod)
        assert command[:3] == ["install", "--mode=0400", "--target-directory=/etc/headgate"]
        wanted = [word.replace("$(RANK)", "1") for word in command[3:]]
        assert all(word.removeprefix("/keys/") in mounted[name] for word in wanted)
        assert sum(word.endswith(".cert") for word in wanted) == 1
        assert "keys" not in {each["name"] for each in after["volumeMounts"]}
        assert mounts(after)["/etc/headgate"]["readOnly"]
    (variable,) = before(pods["headgate"])["env"]
    label = variable["valueFrom"]["fieldRef"]["fieldPath"]
    assert (variable["name"], label) == ("RANK", "metadata.labels['apps.kubernetes.io/pod-index']")


@in_every_overlay
def test_the_certificate_lies_where_the_settings_look_for_it(pods, mounted):
    settings = loads_broker(mounted["headgate"]["broker.toml"], "broker.toml")
    name = settings.at_rank(2).tree.curve_cert.rpartition("/")[2]
    assert f"/keys/{name}".replace("2", "$(RANK)") == before(pods["headgate"])["command"][-1]


@in_every_overlay
def test_no_secret_is_in_a_config_map_or_on_a_disk(built, pods):
    for each in manifests.of_kind(built, "ConfigMap").values():
        assert "secret" not in str(each["data"])
    for pod in pods.values():
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "config"]
        assert volume["emptyDir"]["medium"] == "Memory"


@in_every_overlay
def test_what_changes_changes_a_name(built):
    names = [*manifests.of_kind(built, "ConfigMap"), *manifests.of_kind(built, "Secret")]
    assert sorted(name.rpartition("-")[0] for name in names) == [
        "headgate-gateway",
        "headgate-keys",
        "headgate-tree",
    ]


# ---------------------------------------------------------------- confinement


@in_every_overlay
def test_pods_keep_the_strictest_standard(built, pods):
    (namespace,) = manifests.of_kind(built, "Namespace").values()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods.values():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
        for container in manifests.containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


@in_every_overlay
def test_memory_is_enough_for_what_may_wait(pods):
    assert limit_of(pods["headgate"]) >= 2 * LimitsSection().broker_budget_bytes
    assert limit_of(pods["headgate-gateway"]) >= 2 * GatewaySettings.defaults().limits.budget_bytes


def limit_of(pod):
    return amount(own(pod)["resources"]["limits"]["memory"])


@in_every_overlay
def test_a_read_only_root_has_places_to_write(built, pods):
    claims = manifests.the(built, "StatefulSet", "headgate")["spec"].get("volumeClaimTemplates", [])
    for name, pod in pods.items():
        volumes = {each["name"] for each in pod["spec"]["volumes"]}
        volumes |= {each["metadata"]["name"] for each in claims} if name == "headgate" else set()
        used = [each["name"] for container in manifests.containers(pod) for each in container["volumeMounts"]]
        assert set(used) == volumes
    assert {"/run", "/var/lib/headgate", "/tmp"} <= mounts(own(pods["headgate"])).keys()
    assert {"/var/lib/headgate", "/tmp"} <= mounts(own(pods["headgate-gateway"])).keys()


# ---------------------------------------------------------------- leaving


@in_every_overlay
def test_a_pod_has_time_to_drain(pods):
    broker_s = pods["headgate"]["spec"]["terminationGracePeriodSeconds"]
    drain_s = Settings.defaults().broker.drain_s
    assert broker_s >= drain_s + GRACE_S
    assert broker_s > drain.bound_s(drain_s)
    gateway = pods["headgate-gateway"]["spec"]
    program, pause_s = own(pods["headgate-gateway"])["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert gateway["terminationGracePeriodSeconds"] >= (
        float(pause_s) + GatewaySettings.defaults().gateway.drain_s + GRACE_S
    )


# ---------------------------------------------------------------- who means whom


@in_every_overlay
def test_services_mean_the_pods_they_are_named_after(built, pods):
    for service, maker in (("headgate-tree", "headgate"), ("headgate-gateway", "headgate-gateway")):
        spec = manifests.the(built, "Service", service)["spec"]
        chosen = [name for name, pod in pods.items() if manifests.selects(spec["selector"], pod)]
        assert chosen == [maker]
        named = {port["name"]: port["containerPort"] for port in own(pods[maker])["ports"]}
        assert {port["targetPort"]: port["port"] for port in spec["ports"]} == named


@in_every_overlay
def test_makers_select_their_own_pods(built, pods):
    for name, maker in (
        manifests.of_kind(built, "StatefulSet") | manifests.of_kind(built, "Deployment")
    ).items():
        labels = maker["spec"]["selector"]["matchLabels"]
        assert [other for other, pod in pods.items() if manifests.selects(labels, pod)] == [name]


@in_every_overlay
def test_commands_are_ours_and_their_settings_exist(pods):
    broker = own(pods["headgate"])["args"]
    assert commands.parsed(broker).config == "/etc/headgate/broker.toml"
    assert commands.parsed(own(pods["headgate-gateway"])["args"]).config == "/etc/headgate/gateway.toml"
    given = commands.settings_of(broker)
    (metrics,) = [port for port in own(pods["headgate"])["ports"] if port["name"] == "metrics"]
    assert given["broker.metrics_listen"] == f"http://0.0.0.0:{metrics['containerPort']}"
    assert given["broker.metrics_insecure"] == "true"


# ---------------------------------------------------------------- production


@in_every_overlay
def test_the_small_one_has_nothing_that_a_cluster_may_lack(built, case):
    extra = {each["kind"] for each in built} & {"Ingress", "ServiceMonitor", "NetworkPolicy"}
    assert extra == (set() if case == "small" else {"Ingress", "ServiceMonitor", "NetworkPolicy"})


@in_every_overlay
def test_machines_are_emptied_one_after_the_other(production, pods):
    budgets = [each["spec"] for each in manifests.of_kind(production, "PodDisruptionBudget").values()]
    chosen = [
        name
        for budget in budgets
        for name, pod in pods.items()
        if manifests.selects(budget["selector"]["matchLabels"], pod)
    ]
    assert chosen == (["headgate", "headgate-gateway"] if production else [])
    assert all(budget["maxUnavailable"] == 1 for budget in budgets)


@in_every_overlay
def test_policies_name_ports_that_there_are_and_open_each_to_somebody_alone(production, pods):
    opened = {}
    for name, policy in manifests.of_kind(production, "NetworkPolicy").items():
        spec = policy["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        (maker,) = [
            each for each, pod in pods.items() if manifests.selects(spec["podSelector"]["matchLabels"], pod)
        ]
        ports = {port["name"] for port in own(pods[maker])["ports"]}
        for rule in spec["ingress"]:
            assert rule["from"], f"{name}: a rule without `from` lets everybody in"
            named = {port["port"] for port in rule["ports"]}
            assert named <= ports
            opened.setdefault(maker, set()).update(named)
    if production:
        assert opened == {"headgate": {"tree", "clients", "metrics"}, "headgate-gateway": {"http"}}


@in_every_overlay
def test_brokers_reach_their_parents_and_gateways_rank_0(production, pods):
    for name, port in (("headgate-broker", "tree"), ("headgate-gateway", "clients")):
        if not production:
            continue
        rules = manifests.the(production, "NetworkPolicy", name)["spec"]["egress"]
        targets = [
            each["podSelector"]["matchLabels"]
            for rule in rules
            if {"protocol": "TCP", "port": port} in rule["ports"]
            for each in rule["to"]
        ]
        assert [manifests.selects(labels, pods["headgate"]) for labels in targets] == [True]
        assert any({"protocol": "UDP", "port": 53} in rule["ports"] for rule in rules)


@in_every_overlay
def test_the_ingress_waits_longer_than_the_gateway_is_silent(production):
    for ingress in manifests.of_kind(production, "Ingress").values():
        limits = GatewaySettings.defaults().limits
        notes = ingress["metadata"]["annotations"]
        for direction in ("read", "send"):
            seconds = float(notes[f"nginx.ingress.kubernetes.io/proxy-{direction}-timeout"])
            assert seconds > limits.ping_s + limits.pong_s
            assert seconds > limits.call_s
        assert notes["nginx.ingress.kubernetes.io/proxy-body-size"] == f"{limits.message_bytes >> 20}m"
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                target = path["backend"]["service"]
                service = manifests.the(production, "Service", target["name"])
                assert target["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}


@in_every_overlay
def test_the_monitor_finds_a_service_with_that_port(production):
    for monitor in manifests.of_kind(production, "ServiceMonitor").values():
        labels = monitor["spec"]["selector"]["matchLabels"]
        meant = [
            service
            for service in manifests.of_kind(production, "Service").values()
            if labels.items() <= service["metadata"]["labels"].items()
        ]
        (ports,) = [{port["name"] for port in service["spec"]["ports"]} for service in meant]
        assert {each["port"] for each in monitor["spec"]["endpoints"]} <= ports


@in_every_overlay
def test_tables_are_made_and_compacted_once_an_hour(built, case, pods):
    made = manifests.of_kind(built, "CronJob")
    if case != manifests.JOURNAL:
        assert not made
        return
    (cron,) = (each["spec"] for each in made.values())
    assert cron["schedule"].split()[1:] == ["*"] * 4
    pod = cron["jobTemplate"]["spec"]["template"]
    (ship,) = [each for each in pods["headgate"]["spec"]["containers"] if each["name"] == "ship"]
    for container in manifests.containers(pod):
        for key in ("image", "envFrom", "securityContext"):
            assert container[key] == ship[key]
        assert main([*container["args"], "--help"]) == 0
    assert [each["args"][1] for each in manifests.containers(pod)] == ["batch", "compact"]
    like = {"runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "seccompProfile"}
    mine, theirs = (each["spec"]["securityContext"] for each in (pod, pods["headgate"]))
    assert {key: mine[key] for key in like} == {key: theirs[key] for key in like}


@in_every_overlay
def test_a_journal_stays_smaller_than_its_volume(built, case, pods):
    tree = manifests.the(built, "StatefulSet", "headgate")["spec"]
    if case != manifests.JOURNAL:
        assert "volumeClaimTemplates" not in tree
        return
    (claim,) = tree["volumeClaimTemplates"]
    room = amount(claim["spec"]["resources"]["requests"]["storage"])
    args = own(pods["headgate"])["args"]
    kept = int(commands.settings_of(args)["journal.keep_bytes"])
    assert kept + 2 * Settings.defaults().journal.rotate_bytes < room
    folder = commands.parsed(args).journal
    assert folder.startswith(f"{mounts(own(pods['headgate']))['/var/lib/headgate']['mountPath']}/")
