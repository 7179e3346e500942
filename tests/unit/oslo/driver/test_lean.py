"""A service's process loads the driver, pyzmq and msgspec, and nothing else of this project or of what it needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.oslo import Proxy

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import importlib.abc, json, sys, warnings

warnings.simplefilter("ignore")
import oslo_messaging  # with what it needs itself
from oslo_config import cfg

known = set(sys.modules)


class Lean(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LACKING:
            raise ModuleNotFoundError(f"{name} is not in a service's environment")


LACKING = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Lean())


class Endpoint:
    def echo(self, ctxt, value):
        return value


conf = cfg.CONF
conf([], project="lean", default_config_files=[], default_config_dirs=[])
transport = oslo_messaging.get_rpc_transport(conf, url=sys.argv[2])
target = oslo_messaging.Target(topic="t", server="s")
server = oslo_messaging.get_rpc_server(transport, target, [Endpoint()], executor="threading")
server.start()
client = oslo_messaging.get_rpc_client(transport, target, timeout=20)
answer = client.call({}, "echo", value="here")
client.cast({}, "echo", value="there")
client.prepare(fanout=True).cast({}, "echo", value="everywhere")
notifier = oslo_messaging.Notifier(transport, "me", driver="messagingv2", topics=["n"])
notifier.info({}, "event", {})
server.stop()
server.wait()
transport.cleanup()
print(json.dumps([answer, sorted(set(sys.modules) - known)]))
"""
LACKING = (
    "aiohttp", "click", "cryptography", "gateway", "jinja2", "jwt", "prometheus_client", "redis", "rich", "typer",
    "websockets",
)  # fmt: skip
"""What a service's environment has not, unless it needs it for itself."""
OURS = {
    "broker", "broker.sockets",
    "broker.atomic", "broker.awake", "broker.backoff", "broker.errors", "broker.identity", "broker.memory",
    "broker.nesting", "broker.obstacles", "broker.rates", "broker.safe_text", "broker.secret", "broker.trust",
    "broker.endpoints", "broker.z85", "broker.transport", "broker.transport.curve",
    "broker.oslo", "broker.oslo.bodies", "broker.oslo.contract", "broker.oslo.frames", "broker.oslo.names",
    "broker.oslo.node", "broker.oslo.records",
    "broker.oslo.directory", "broker.oslo.directory.peer", "broker.oslo.directory.state",
    "broker.oslo.directory.wire",
}  # fmt: skip
"""All that is loaded besides the rooms driver, client and reactor."""
OSLOS = {"cython_runtime", "eventlet", "futurist", "oslo_messaging", "oslo_utils"}
"""What oslo.messaging and pyzmq load when they are used."""
ROOMS = ("broker.oslo.driver", "broker.oslo.client", "broker.oslo.reactor")
NOT_FOR_CLIENTS = {
    "broker.oslo.reactor.binding",
    "broker.oslo.reactor.router",
}


@pytest.mark.patient
def test_a_service_needs_pyzmq_and_msgspec_beside_oslo_messaging(rundir: Path) -> None:
    pytest.importorskip("oslo_messaging", reason="optional: oslo.messaging is not installed")
    proxy = Proxy(rundir / "n")
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(LACKING), proxy.url],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    finally:
        proxy.kill()
    assert done.returncode == 0, done.stderr
    answer, loaded = json.loads(done.stdout)
    assert answer == "here"
    ours = {name for name in loaded if name.partition(".")[0] in ("broker", "gateway", "headgate")}
    assert {name for name in ours if not name.startswith(ROOMS)} == OURS
    assert not ours & NOT_FOR_CLIENTS
    others = {name.partition(".")[0] for name in loaded} - {"broker"} - sys.stdlib_module_names
    others = {name for name in others if not name.startswith("_") and not name.endswith("__mypyc")}
    assert others <= {"zmq", "msgspec", *OSLOS}
