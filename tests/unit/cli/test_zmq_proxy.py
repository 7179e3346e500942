"""``oslo-messaging-zmq-proxy``: what a deployment of 2018 says becomes options of ``headgate oslo proxy``."""

import os
import subprocess
import sys

import pytest

from broker.cli.oslo import proxy, zmq_proxy
from broker.errors import ConfigError
from broker.secret import SecretUrl
from broker.settings import OsloSection
from tests.tables import for_each

FILE = """
[DEFAULT]
transport_url = "zmq+redis://ada:hush@r1:6379,r2:6380/"
debug
[zmq_proxy_opts]
host = 10.0.0.7
frontend_port = 9601
publisher_port = 0
[oslo_messaging_zmq]
rpc_zmq_host = node-7
rpc_zmq_ipc_dir = /run/zmq
use_router_proxy = true
[matchmaker_redis]
host = elsewhere
"""


def translated(*words):
    return zmq_proxy.translated(zmq_proxy.arguments().parse_args(words))


def test_a_file_of_then_says_where_and_which_redis(tmp_path):
    path = tmp_path / "zeromq.conf"
    path.write_text(FILE)
    words = translated("--config-file", str(path), "--debug")
    made = proxy.section_of(proxy.arguments().parse_args([*words, "--insecure"]))
    assert made == OsloSection(
        host="10.0.0.7",
        node="node-7",
        ipc_dir="/run/zmq",
        call_port=9601,
        redis=(SecretUrl("redis://ada:hush@r1:6379"), SecretUrl("redis://ada:hush@r2:6380")),
        insecure=True,
    )


def test_options_go_before_the_file(tmp_path):
    path = tmp_path / "zeromq.conf"
    path.write_text(FILE)
    words = translated(
        "-c", str(path), "-H", "10.0.0.8", "-f", "9701", "-p", "9702", "-u", "zmq+redis://r9:1"
    )
    assert words == [
        *("--host", "10.0.0.8", "--node", "node-7", "--ipc-dir", "/run/zmq"),
        *("--call-port", "9701", "--fanout-port", "9702", "--redis", "redis://r9:1"),
    ]


@for_each(
    ("group", "urls"),
    [
        ("host = r1", ["redis://r1:6379"]),
        ("host = r1\nport = 7\npassword = hush", ["redis://:hush@r1:7"]),
        ("sentinel_hosts = s1:1, s2:2\nhost = r1", ["sentinel://s1:1,s2:2/oslo-messaging-zeromq"]),
        ("sentinel_hosts = s1:1\nsentinel_group_name = mine", ["sentinel://s1:1/mine"]),
        ("", []),
    ],
)
def test_redis_may_stand_in_its_own_group(tmp_path, group, urls):
    path = tmp_path / "zeromq.conf"
    path.write_text(f"[DEFAULT]\ntransport_url = zmq://\n[matchmaker_redis]\n{group}\n")
    assert translated("-c", str(path)) == [word for url in urls for word in ("--redis", url)]


def test_sentinels_of_a_url_watch_the_usual_service():
    assert translated("-u", "zmq+sentinel://s1:26379") == [
        "--redis",
        "sentinel://s1:26379/oslo-messaging-zeromq",
    ]


def test_a_file_of_ours_is_handed_on():
    assert translated("-c", "/etc/headgate/oslo.toml") == ["--config", "/etc/headgate/oslo.toml"]


def test_a_file_that_is_none_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"--config-file /no/such\.conf: .*No such file"):
        translated("-c", "/no/such.conf")
    path = tmp_path / "x.conf"
    path.write_text("no group = 1\n")
    with pytest.raises(ConfigError, match="no section headers"):
        translated("-c", str(path))


def test_the_command_runs_the_proxy_and_says_what_its_words_became(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", "import headgate; raise SystemExit(headgate.zmq_proxy())"]
    words = ["-H", "192.0.2.1", "-b", "50002", "-u", "zmq+redis://:hush@r1:6379", "-l", str(log)]
    done = subprocess.run(
        [*command, *words, "--ipc-dir", str(tmp_path / "ipc")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    said = log.read_text()
    assert done.returncode == 78, done.stderr + said  # plaintext, off loopback
    assert "--backend-port changes nothing: " in said
    assert f"headgate oslo proxy --host 192.0.2.1 --redis ... --ipc-dir {tmp_path}/ipc" in said
    assert "oslo.curve_cert" in said
    assert "hush" not in said
