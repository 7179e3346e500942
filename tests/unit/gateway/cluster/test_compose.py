"""The compose file: what stands in deploy/ is what the program writes, and it keeps what it promises."""

import ast
import dataclasses
from pathlib import Path

import pytest
import yaml

from broker.errors import ConfigError
from broker.settings import BrokerSection
from gateway.cluster import compose
from gateway.cluster.shape import Shape
from gateway.settings import GatewaySettings

ROOT = Path(__file__).parents[4]
DEPLOYED = Shape("headgate", 7, nfp=True, oslo=True)
SHAPES = [
    DEPLOYED,
    Shape("one", 1, gateway=False),
    Shape("wide", 40, fanout=39, port=7000, client_port=7001, image="registry.example/headgate:1"),
    Shape("jobs", 3, nfp=True, host_pattern="hg-{rank}.tree"),
    Shape("7", 2, oslo=True, host_pattern="{rank}", image="[::1]:5000/no:0@sha256:0"),
]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def parsed(shape):
    return yaml.safe_load(compose.render(shape))


def test_the_file_in_deploy_is_what_the_program_writes():
    assert (ROOT / "deploy/compose.yaml").read_text() == compose.render(DEPLOYED)
    assert (ROOT / "deploy" / compose.TASKS).read_text() == compose.TASKS_PY


def test_the_tasks_are_python():
    assert ast.parse(compose.TASKS_PY)


@shapes
def test_every_rank_has_a_service_with_the_host_name_of_the_settings(shape):
    services = parsed(shape)["services"]
    hosts = {name: service["hostname"] for name, service in services.items() if name.startswith("broker-")}
    assert hosts == {f"broker-{rank}": shape.host(rank) for rank in shape.ranks()}


@shapes
def test_names_of_networks_and_volumes_are_declared_and_used(shape):
    found = parsed(shape)
    services = found["services"].values()
    networks = {name for service in services for name in service.get("networks", ())}
    assert networks == set(found["networks"])
    mounts = {mount.partition(":")[0] for service in services for mount in service.get("volumes", ())}
    assert {mount for mount in mounts if not mount.startswith(".")} == set(found["volumes"])


@shapes
def test_no_member_has_more_than_it_needs(shape):
    for name, service in parsed(shape)["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges"], name
        uid, _, gid = service["user"].partition(":")
        assert int(uid) not in (0, 65534), name
        assert int(gid) not in (0, 65534), name
        assert "privileged" not in service, name
        assert service["restart"] == ("unless-stopped" if name.startswith("broker-") else "on-failure"), name


@shapes
def test_the_gateway_alone_is_published_and_on_the_loopback(shape):
    ports = {
        name: service["ports"] for name, service in parsed(shape)["services"].items() if "ports" in service
    }
    assert ports == ({"gateway": ["127.0.0.1:${HEADGATE_PORT:-8280}:8280"]} if shape.gateway else {})


@shapes
def test_keys_can_be_written_by_init_alone(shape):
    for name, service in parsed(shape)["services"].items():
        mounts = [mount for mount in service.get("volumes", ()) if mount.startswith("keys:")]
        assert mounts == (
            []
            if name in ("redis", "spark", "compact")
            else ["keys:/keys" if name == "init" else "keys:/keys:ro"]
        )


@shapes
def test_whoever_is_told_to_stop_has_time_to_drain(shape):
    drain_s = max(BrokerSection().drain_s, GatewaySettings.defaults().gateway.drain_s)
    for name, service in parsed(shape)["services"].items():
        if name != "redis":  # it keeps nothing
            assert float(service["stop_grace_period"].removesuffix("s")) >= drain_s + 20, name


@shapes
def test_nothing_waits_for_anything(shape):
    assert [name for name, service in parsed(shape)["services"].items() if "depends_on" in service] == []


def test_a_shape_without_wings_has_brokers_and_init_alone():
    found = parsed(Shape("bare", 2, gateway=False))
    assert set(found["services"]) == {"init", "broker-0", "broker-1", "spark", "compact"}
    assert set(found["networks"]) == {"tree"}


def test_init_is_told_what_is_not_usual():
    usual = ["cluster", "init", "/keys", "--size", "7", "--nfp", "--oslo"]
    assert compose.init(DEPLOYED) == usual
    assert compose.init(Shape("odd", 3, fanout=9, port=9000, client_port=9001, gateway=False)) == [
        *("cluster", "init", "/keys", "--size", "3"),
        *("--fanout", "9", "--port", "9000", "--client-port", "9001", "--no-gateway"),
    ]


def test_what_the_proxies_share_and_who_is_seen_on_the_tree():
    services = parsed(DEPLOYED)["services"]
    commands = {name: services[name]["command"] for name in compose.PROXIES}
    assert all("redis://redis:6379/0" in command for command in commands.values())
    assert [name for name, command in commands.items() if "--uri" in command] == ["oslo-1"]
    assert "run:/run" in services["broker-0"]["volumes"]
    assert "run:/run/tree:ro" in services["oslo-1"]["volumes"]


def test_spark_runs_on_request_only():
    services = parsed(DEPLOYED)["services"]
    assert services["spark"]["profiles"] == services["compact"]["profiles"] == ["spark"]
    where = [word for word in services["spark"]["command"] if word.startswith("--warehouse=")]
    assert [*where, "--every=3600"] == services["compact"]["command"][2:]


@shapes
def test_what_looks_like_a_number_or_a_list_is_text(shape):
    found = parsed(shape)
    assert found["name"] == shape.name
    for name, service in found["services"].items():
        assert isinstance(service["image"], str), name
        assert isinstance(service.get("hostname", ""), str), name
    assert found["services"]["init"]["image"] == f"${{HEADGATE_IMAGE:-{shape.image}}}"


def test_the_file_is_written_anew_and_the_tasks_of_the_workers_stay(tmp_path):
    file, tasks = tmp_path / "lab" / compose.FILE, tmp_path / "lab" / compose.TASKS
    assert compose.write(DEPLOYED, tmp_path / "lab") == [file, tasks]
    assert (file.read_text(), tasks.read_text()) == (compose.render(DEPLOYED), compose.TASKS_PY)
    assert {path.stat().st_mode & 0o777 for path in (file, tasks)} == {0o644}
    tasks.write_text("mine\n")
    smaller = dataclasses.replace(DEPLOYED, size=3)
    assert compose.write(smaller, tmp_path / "lab") == [file]
    assert (file.read_text(), tasks.read_text()) == (compose.render(smaller), "mine\n")


def test_a_compose_file_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / compose.FILE).write_text("services: {}\n")
    with pytest.raises(ConfigError, match="not written by `headgate cluster compose`"):
        compose.write(DEPLOYED, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [compose.FILE]
    assert (tmp_path / compose.FILE).read_text() == "services: {}\n"


def test_a_place_where_nothing_can_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        compose.write(DEPLOYED, tmp_path / "file")
