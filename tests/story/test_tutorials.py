"""The tutorials on test clusters and on bridges do what they say, from their first block to their last."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.brokers import one_broker
from tests.live.gateways import GatewayProcess, config_in
from tests.live.pages import Page

CLUSTER = Page("tutorials/test-cluster.md")
BRIDGE = Page("tutorials/bridge.md")


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": f"{folder}/state",
        "XDG_RUNTIME_DIR": str(folder),
        **more,
    }


def run(folder: Path, script: str, **more: str) -> str:
    done = subprocess.run(
        ["bash", "-emc", script],
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.patient
@pytest.mark.timeout(180)
def test_a_test_cluster_with_faults(rundir: Path) -> None:
    (rundir / "counter.py").write_text(CLUSTER.block("python", "h.service"))
    (rundir / "test_counter.py").write_text(CLUSTER.block("python", "import pytest"))
    out = run(rundir, CLUSTER.block("sh", "headgate cluster up"))
    assert "broker-2" in out or "rank-2" in out
    command = CLUSTER.block("sh", "python -m pytest test_counter.py").strip()
    out = run(rundir, f"{command} -p no:cacheprovider -p no:xdist")
    assert "3 passed" in out


@pytest.mark.patient
def test_a_bridge(rundir: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("optional: there is no curl")
    call, refused, listen, device, check, start, guest = (
        text for kind, text in BRIDGE.blocks if kind == "sh"
    )
    (rundir / "device.py").write_text(BRIDGE.block("python", "service.add"))
    with one_broker(rundir) as broker:
        gateway = GatewayProcess(config_in(rundir, broker.uri))
        try:
            gateway.wait_ready()
            more = {
                "URL": gateway.urls[0].rstrip("/"),
                "HEADGATE_TOKEN": gateway.tokens["ada"],
                "FLUX_URI": broker.uri,
            }
            out = run(rundir, call + refused + listen, **more)
            assert '"value":"1"' in out.replace(" ", "")
            assert '"errno":38' in out.replace(" ", "")
            assert re.search(r"^data: .*22\.0", out, re.MULTILINE)
            out = run(rundir, device, **more)
            assert "registered: device" in out
            assert json.loads(next(line for line in out.splitlines() if line.startswith("{"))) == {
                "celsius": 21.5
            }
            assert "as it says" in out
        finally:
            gateway.kill()
        assert start.split("#")[0].split() == ["headgate", "gateway", "--config", "gateway.toml"]
        settings = BRIDGE.block("toml", "[[users]]").replace(":8290", ":0")
        (rundir / "gateway.toml").write_text(
            f'[gateway]\nupstream = "{broker.uri}"\nstatedir = "{rundir}/guest"\n{settings}'
        )
        more = {"FLUX_URI": broker.uri}
        token = run(rundir, check, **more).split()[-1]
        gateway = GatewayProcess(rundir / "gateway.toml")
        try:
            gateway.wait_ready()
            guest = guest.replace("http://127.0.0.1:8290", gateway.urls[0].rstrip("/")).replace("...", token)
            out = run(rundir, guest, **more)
            assert "registered: 5002-device" in out
            assert '"celsius"' in out
            assert "as it says" in out
        finally:
            gateway.kill()
