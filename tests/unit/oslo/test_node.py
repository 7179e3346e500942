"""What a node's proxy is told, and its defaults."""

import os

import pytest

from broker.identity import Role
from broker.oslo import node as config_of_nodes
from broker.oslo.names import PORTS, Pipeline
from broker.oslo.node import (
    DIRECTORY,
    EVERYTHING,
    KeyEntry,
    NodeConfig,
    Rule,
    client_ipc_dir,
    proxy_ipc_dir,
)


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
    assert KeyEntry("k").rolemask == NodeConfig("/run/x").unlisted_mask == Role.USER
    assert Rule().roles == Role.USER | Role.OWNER


def test_with_a_certificate_keys_that_are_not_listed_are_refused_unless_a_setting_lets_them_in():
    assert NodeConfig("/run/x", curve_cert="/c").unlisted_mask == 0
    assert NodeConfig("/run/x", curve_cert="/c", unlisted=int(Role.USER)).unlisted_mask == Role.USER
    assert NodeConfig("/run/x", unlisted=0).unlisted_mask == 0


@pytest.fixture
def user(monkeypatch, tmp_path):
    """Become a user of that number, who has that runtime folder and the node that one (None: there is none)."""

    def become(uid, runtime, node):
        monkeypatch.setattr(os, "getuid", lambda: uid)
        monkeypatch.setattr(config_of_nodes, "NODE_DIR", str(tmp_path / "node"))
        monkeypatch.delenv("HEADGATE_OSLO_DIR", raising=False)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        if runtime is not None:
            monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        if node:
            (tmp_path / "node").mkdir(0o750)
        return str(tmp_path / "node")

    return become


@pytest.mark.parametrize(
    ("uid", "runtime", "path"),
    [
        (0, "/run/user/0", ""),
        (1000, "/run/user/1000", "/run/user/1000/headgate/oslo"),
        (1000, None, "/tmp/headgate-oslo-1000"),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_a_proxys_folder_is_its_users_own_and_the_nodes_for_root(user, there, uid, runtime, path):
    node = user(uid, runtime, there)
    assert proxy_ipc_dir() == (path or node)


@pytest.mark.parametrize("runtime", ["/run/user/1000", None])
def test_clients_look_in_the_nodes_folder_first_whoever_they_are(user, runtime):
    node = user(1000, runtime, True)
    assert client_ipc_dir() == node


def test_without_a_nodes_folder_a_login_session_expects_its_users_proxy_and_a_service_the_nodes(user):
    assert user(1000, "/run/user/1000", False)
    assert client_ipc_dir() == "/run/user/1000/headgate/oslo"
    assert user(2**30, None, False) == client_ipc_dir()


def test_without_a_nodes_folder_that_of_our_own_user_is_found_but_not_one_that_others_made(user, monkeypatch):
    user(2**30, None, False)
    own = proxy_ipc_dir()
    for uid, found in ((2**30, own), (2**30 + 1, config_of_nodes.NODE_DIR)):
        monkeypatch.setattr(
            os, "lstat", lambda _path, uid=uid: os.stat_result((0, 0, 0, 0, uid, 0, 0, 0, 0, 0))
        )
        assert client_ipc_dir() == found


def test_a_variable_names_the_folder_for_both(user, monkeypatch):
    user(1000, "/run/user/1000", True)
    monkeypatch.setenv("HEADGATE_OSLO_DIR", "/srv/oslo")
    assert proxy_ipc_dir() == client_ipc_dir() == "/srv/oslo"
