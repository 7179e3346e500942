"""What the guide tells people to do with the gateway works as written."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from gateway.settings import loads
from tests.live.brokers import one_broker
from tests.live.gateways import GatewayProcess
from tests.live.pages import Page

block = Page("guides/web.md").block

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def gateway(module_rundir):
    """The guide's configuration, in a directory of its own and on a free port, in front of a real broker."""
    text = block("toml", "[[users]]").replace(":8280", ":0")
    with one_broker(module_rundir) as broker:
        config = module_rundir / "gateway.toml"
        section = f'[gateway]\nupstream = "{broker.uri}"\nstatedir = "{module_rundir}/state"\ndrain_s = 0.1\n'
        config.write_text(section + text)
        running = GatewayProcess(config)
        try:
            running.wait_ready()
            yield running
        finally:
            running.kill()


def environment(gateway) -> dict[str, str]:
    return {**os.environ, "URL": gateway.urls[0], "HEADGATE_TOKEN": gateway.tokens["grafana"]}


def run(gateway, *words: str) -> str:
    if words[0] == "bash" and shutil.which("curl") is None:
        pytest.skip("optional: there is no curl")
    done = subprocess.run(
        words, env=environment(gateway), capture_output=True, text=True, timeout=40, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rules_are_as_described():
    settings = loads(block("toml", "[[users]]"), "gateway.toml")
    assert [user.name for user in settings.users] == ["grafana"]
    look, *others = settings.rules
    assert look.preset == "viewer"
    assert {kind for rule in others for kind in rule.kinds} == {"call", "subscribe", "publish"}


@pytest.mark.patient
def test_curl(gateway):
    out = run(gateway, "bash", "-c", "set -e\n" + block("sh", "/v1/rpc/attr.get"))
    size, _, rest = out.partition("}")
    assert json.loads(size + "}") == {"value": "1", "flags": 1}
    assert re.search(r'"sequence": ?\d+', rest)
    assert re.search(r'^data: .*"from": ?"curl"', rest, re.MULTILINE)
    assert "headgate_gateway_sessions" in rest


@pytest.mark.patient
def test_python(gateway):
    uri = gateway.urls[0].replace("http", "ws", 1)
    out = run(gateway, sys.executable, "-c", block("python", 'h.subscribe("demo.")'), uri)
    assert out == "1 brokers\n{'from': 'python'}\n"


@pytest.mark.patient
def test_a_token_made_by_the_command_is_taken(gateway, module_rundir):
    check, line, _ = (
        block("sh", "headgate token add")
        .replace("gateway.toml", str(module_rundir / "gateway.toml"))
        .splitlines()
    )
    assert "1 user(s), 3 rule(s)" in run(gateway, sys.executable, "-m", "broker.cli.main", *check.split()[1:])
    words = line.partition("#")[0].split()
    made = run(gateway, sys.executable, "-m", "broker.cli.main", *words[1:], "--json")
    gateway.tokens["grafana"] = json.loads(made)["token"]
    out = run(gateway, "bash", "-c", "\n".join(block("sh", "/v1/rpc/attr.get").splitlines()[:2]))
    assert json.loads(out)["value"] == "1"
