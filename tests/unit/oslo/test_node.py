"""What a node's proxy is told, and its defaults."""

import os

import pytest

from broker.identity import Role
from broker.oslo.names import PORTS, Pipeline
from broker.oslo.node import DIRECTORY, EVERYTHING, KeyEntry, NodeConfig, Rule, default_ipc_dir


def test_by_default_everything_runs_at_the_ports_of_the_seed():
    config = NodeConfig("/run/x")
    assert config.run == EVERYTHING == {DIRECTORY, *map(str, Pipeline)}
    assert config.ports == PORTS
    assert config.ports is not PORTS
    assert config.host == "127.0.0.1"
    assert not config.insecure
    assert config.beat_s < config.lease_s


def test_an_endpoint_in_the_folder():
    assert NodeConfig("/run/x").path("call.ctl") == "ipc:///run/x/call.ctl"


def test_nobody_gets_more_than_a_user_without_being_told():
    assert KeyEntry("k").rolemask == NodeConfig("/run/x").unlisted == Role.USER
    assert Rule().roles == Role.USER | Role.OWNER


@pytest.mark.parametrize(
    ("uid", "runtime", "path"),
    [
        (0, "/run/user/0", "/run/headgate/oslo"),
        (1000, "/run/user/1000", "/run/user/1000/headgate/oslo"),
        (1000, None, "/tmp/headgate-oslo-1000"),
    ],
)
def test_the_default_folder_is_the_users_own(monkeypatch, uid, runtime, path):
    monkeypatch.setattr(os, "getuid", lambda: uid)
    if runtime is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert default_ipc_dir() == path
