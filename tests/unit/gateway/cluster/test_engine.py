import os
from pathlib import Path

import pytest

from broker.errors import ConfigError
from gateway.cluster import engine
from gateway.cluster.engine import choose, make, missing
from gateway.cluster.processes import Namespaces, Processes


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A PATH with nothing in it but what a test puts there, and no podman-compose beside this Python."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    return tmp_path


def test_processes_are_what_always_goes(path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said = []
    assert choose(None, say=said.append) == "processes"
    (line,) = said
    assert line.startswith(
        "engine: processes (no podman: the program is not there; no docker: the program is not"
    )
    assert line.endswith("; no namespaces: needs root)")


def test_root_with_ip_gets_namespaces(path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert missing("namespaces", "") == "the program ip (iproute2) is not there"
    program(path, "ip", "exit 0")
    assert choose(None) == "namespaces"


def test_containers_need_program_engine_and_image(path):
    program(path, "podman", 'echo "Error: no such image" >&2; exit 125')
    program(path, "docker", "exit 0")
    assert missing("podman", "headgate") == "no image headgate (Error: no such image)"
    assert choose(None) == "docker"
    with pytest.raises(ConfigError, match="engine podman: no image headgate"):
        choose("podman")


def test_the_image_is_asked_for_by_name(path):
    program(path, "podman", f'echo "$@" >> {path}/asked')
    assert choose(None, "registry.example/headgate:1.2") == "podman"
    asked = (path / "asked").read_text().splitlines()
    assert asked == ["image inspect --format {{.Id}} registry.example/headgate:1.2", "compose version"]


def test_containers_need_compose(path):
    program(path, "docker", 'test "$1" = image')
    assert missing("docker", "headgate") == "no compose for it, expected docker's plugin compose"


def test_an_engine_that_hangs_is_passed_over(path, monkeypatch):
    monkeypatch.setattr(engine, "ASK_S", 0.2)
    program(path, "docker", "exec /bin/sleep 5")
    assert missing("docker", "headgate") == "it does not answer (TimeoutExpired)"


def test_what_was_asked_for_is_taken(path):
    said = []
    assert choose("processes", say=said.append) == "processes"
    assert said == ["engine: processes, as asked"]
    with pytest.raises(ConfigError, match="'xen', expected one of processes, namespaces, podman, docker"):
        choose("xen")


def test_each_name_has_its_engine(tmp_path):
    assert type(make("processes", tmp_path)) is Processes
    assert type(make("namespaces", tmp_path)) is Namespaces
    with pytest.raises(ConfigError, match="xen"):
        make("xen", tmp_path)
