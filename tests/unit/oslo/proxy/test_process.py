"""The whole proxy: rooms together and alone, signals, the end."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from broker.errors import ConfigError
from broker.oslo.frames import Kind, encode
from broker.oslo.names import Pipeline, Reason
from broker.oslo.node import EVERYTHING
from broker.oslo.proxy import process
from broker.oslo.proxy.process import NodeProxy
from tests.live.oslo_raw import PATIENCE_S, child_of, config_at, until
from tests.live.oslo_wire import hear
from tests.tables import for_each

PROGRAM = """
import sys
from tests.live.oslo_raw import config_at
from broker.oslo.proxy.process import NodeProxy
proxy = NodeProxy(config_at(sys.argv[1], run=frozenset(sys.argv[2:])))
proxy.run(ready=lambda: print("ready", flush=True))
print("left", flush=True)
"""


class Process:
    """A proxy in a process of its own."""

    def __init__(self, folder, *run, **environ):
        command = [sys.executable, "-c", PROGRAM, str(folder), *run]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environ}
        )

    def __enter__(self):
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()
        return self.process

    def __exit__(self, *_error):
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_makes_it_leave(folder, number):
    with Process(folder, "call", "cast") as process:
        assert sorted(each.name for each in folder.iterdir()) == [
            "call.ctl", "call.in", "call.lock", "cast.ctl", "cast.in", "cast.lock",
        ]  # fmt: skip
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out, err) == (0, "left\n", "")
    assert sorted(each.name for each in folder.iterdir()) == ["call.lock", "cast.lock"]


def test_sighup_is_harmless(folder):
    with Process(folder, "call") as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=PATIENCE_S)[0] == "left\n"
        assert process.returncode == 0


def test_the_service_manager_is_told(folder, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("m") / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(PATIENCE_S)
        with Process(folder, "cast", NOTIFY_SOCKET=path) as process:
            assert manager.recv(100) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
            assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("room", ["call", "cast"])
def test_each_pipeline_can_be_alone(run_node, room):
    node = run_node(run=frozenset({room}))
    assert set(node.proxy.pipelines) == {room}
    server, client = node.server(room), node.client(room)
    server.open("t")
    client.send(Kind.CALL if room == "call" else Kind.CAST, "t", b"hello")
    assert server.get().body == b"hello"


def test_all_rooms_together(run_node):
    node = run_node(run=EVERYTHING)
    told = node.within(node.proxy.status)
    assert set(told) == EVERYTHING
    assert sorted(each.name for each in os.scandir(node.config.ipc_dir) if each.name.endswith(".ctl")) == [
        "call.ctl", "cast.ctl", "directory.ctl", "fanout.ctl", "notify.ctl",
    ]  # fmt: skip
    node.proxy.stop("over")
    node.join()
    assert not [each.name for each in os.scandir(node.config.ipc_dir) if not each.name.endswith(".lock")]


def test_pipelines_in_processes_of_their_own_do_not_feel_each_other(folder, run_node):
    with Process(folder, "cast") as process:
        node = run_node(run=frozenset({"call"}))
        server, client = node.server(), node.client()
        server.open("t")
        os.kill(process.pid, signal.SIGSTOP)
        client.call("t")
        server.reply(server.get(), b"r")
        assert client.get().rest == [b"r"]
        os.kill(process.pid, signal.SIGCONT)


def test_a_second_proxy_is_refused_room_by_room(run_node, folder):
    node = run_node(run=frozenset({"call"}))
    second = NodeProxy(config_at(folder, run=frozenset({"call"})))
    with pytest.raises(ConfigError, match=rf"another proxy \(pid {os.getpid()}\) runs call"):
        second.open()
    server, client = node.server(), node.client()
    server.open("t")
    client.call("t")
    server.get()


def test_a_port_in_use_leaves_nothing_open(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {**dict.fromkeys(Pipeline, 0), Pipeline.CAST: taken.getsockname()[1]}
        proxy = NodeProxy(config_at(folder, ports=ports))
        with pytest.raises(ConfigError, match="cannot listen"):
            proxy.open()
    assert sorted(each.name for each in folder.iterdir()) == ["call.lock", "cast.lock"]
    again = NodeProxy(config_at(folder))
    again.open()
    again.stop()
    again.run()


@for_each("run", [(), ("calls",), ("call", "x")])
def test_only_known_rooms_run(folder, run):
    with pytest.raises(ConfigError, match="expected some of"):
        NodeProxy(config_at(folder, run=frozenset(run))).open()
    assert not folder.exists()


@pytest.mark.patient
def test_leaving_is_told_and_does_not_wait_for_the_frozen(run_node, monkeypatch):
    monkeypatch.setattr(process, "FLUSH_S", 0.2)
    node = run_node(queue_msgs=1000, send_msgs=4, lease_s=60.0)
    with child_of(node, "call", "t", "frozen") as child:
        child.freeze()
        client, server = node.client(), node.server()
        server.open("u")
        while not node.status("call")["control"]["waiting"]:
            for _ in range(20):
                client.call("t", bytes(64 << 10))
            client.call("unknown")
            client.get()
        began = time.monotonic()
        node.proxy.stop("maintenance")
        frames = hear(server.ctl)
        assert frames == [encode(Kind.REFUSED, reason=Reason.LEAVING), b"maintenance"]
        node.join()
        assert time.monotonic() - began < PATIENCE_S


def test_what_waits_is_flushed_before_the_end(run_node):
    """A call that is in the server's hands when the proxy leaves is still answered."""
    node = run_node()
    server, client = node.server(), node.client()
    server.open("t")
    client.call("t")
    got = server.get()
    node.proxy.stop("going")
    assert hear(server.ctl)[1] == b"going"
    server.reply(got, b"last word")
    assert client.get().rest == [b"last word"]
    node.join()


def test_a_second_stop_is_at_once(run_node):
    node = run_node()
    server, client = node.server(), node.client()
    server.open("t")
    client.call("t")
    server.get()
    node.proxy.stop("one")
    node.proxy.stop("two")
    node.join()
    until(lambda: not os.path.exists(f"{node.config.ipc_dir}/call.in"), "the socket to be deleted")
