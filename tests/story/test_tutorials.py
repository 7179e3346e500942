"""The tutorials do what they say, from their first block to their last, each from an empty folder.

What the dashboard's page shows in a browser is in ``tests/browser/test_tutorial.py``.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.live.brokers import one_broker
from tests.live.gateways import GatewayProcess, config_in
from tests.live.pages import ROOT, Page
from tests.live.ports import free_port

DASHBOARD = Page("tutorials/dashboard.md")
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


def test_the_file_for_ci_does_what_the_page_does_by_hand(tmp_path: Path) -> None:
    text = CLUSTER.block("yaml", "jobs:")
    steps = yaml.safe_load(text)["jobs"]["faults"]["steps"]
    install, command = (shlex.split(step["run"]) for step in steps if "run" in step)
    assert command == shlex.split(CLUSTER.block("sh", "python -m pytest test_counter.py"))
    assert install[:4] == ["python", "-m", "pip", "install"]
    assert f"pip install {shlex.quote(install[4])} {install[5]}" in CLUSTER.path.read_text()
    assert any(step.get("with", {}).get("path") == "headgate" for step in steps)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert install[4] == "./headgate[all]"
    assert "all" in project["optional-dependencies"]
    (python,) = (step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", ""))
    assert f"Programming Language :: Python :: {python}" in project["classifiers"]
    checker = Path(sys.executable).parent / "check-jsonschema"
    if not checker.exists():
        pytest.skip("optional: check-jsonschema is not here")
    (tmp_path / "faults.yml").write_text(text)
    words = [checker, "--builtin-schema", "vendor.github-workflows", tmp_path / "faults.yml"]
    assert subprocess.run(words, capture_output=True, timeout=60, check=False).returncode == 0


@contextlib.contextmanager
def terminal(folder: Path, command: str, until: str) -> Iterator[list[str]]:
    """A command that goes on in a terminal of its own, once it has printed a line with ``until``; Ctrl-C at the end.

    Gives the lines so far.
    """
    process = subprocess.Popen(
        ["bash", "-ec", command], cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line.strip())
            if until in line:
                break
        yield lines
    finally:
        process.send_signal(signal.SIGINT)
        ended = process.wait(30)
        process.stdout.close()
    assert ended == 0, lines


@contextlib.contextmanager
def in_use(*ports: int) -> Iterator[None]:
    """Somebody listens there: we, or who was there before us."""
    with contextlib.ExitStack() as stack:
        for port in ports:
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


@pytest.mark.patient
@pytest.mark.timeout(180)
def test_a_dashboard_where_its_ports_are_in_use(rundir: Path) -> None:
    """As the page says: ``up`` takes the next port, and the gateway says that another number is to be written."""
    up, _publish, _user, start, serve = (text.strip() for kind, text in DASHBOARD.blocks if kind == "sh")
    (rundir / "wall.toml").write_text(DASHBOARD.block("toml", "[[users]]"))
    with in_use(8280, 8290, 8000), terminal(rundir, f"exec {up}", "Ctrl-C ends it") as lines:
        (link,) = (line for line in lines if "/login#once=" in line)
        assert 8280 < int(re.findall(r":(\d+)/", link)[0]) < 8300
        (words,) = (line for line in lines if line.startswith(". "))
        assert "4" in run(rundir, f"{words}\nheadgate attr get size")
        for command, place in ((start, ":8290: "), (serve, "")):
            said = run(rundir, f"{words}\n{command.split('#')[0]} 2>&1 || echo as it says")
            assert f"{place}Address already in use" in said.replace("[Errno 98] ", "")
            assert "as it says" in said


@pytest.mark.patient
@pytest.mark.timeout(180)
def test_a_dashboard(rundir: Path) -> None:
    """Every command of the page, in the terminal that it names; the gateway is ended and started again."""
    up, publish, user, start, serve = (text.strip() for kind, text in DASHBOARD.blocks if kind == "sh")
    port = free_port()
    (rundir / "wall.toml").write_text(DASHBOARD.block("toml", "[[users]]").replace(":8290", f":{port}"))
    with terminal(rundir, f"exec {up}", "Ctrl-C ends it") as lines:
        (words,) = (line for line in lines if line.startswith(". "))
        number = int(run(rundir, f"{words}\n{publish}").split()[-1])
        token = run(rundir, f"{words}\n{user}").split()[-1]
        wall = {"HEADGATE_TOKEN": token, "HEADGATE_URI": f"ws://127.0.0.1:{port}"}
        with terminal(rundir, f"{words}; exec {start}", str(port)):
            assert "4" in run(rundir, "headgate attr get size", **wall)
            refused = run(rundir, "headgate pub demo.lamp 2>&1 || echo as it says", **wall)
            assert "no rule" in refused or "EPERM" in refused
            assert "as it says" in refused
            link = run(rundir, f"{words}\nheadgate login link --config wall.toml")
            assert f":{port}/login#once=" in link
        run(rundir, f"{words}\n{publish.replace('true', 'false')}")
        with terminal(rundir, f"{words}; exec {start}", str(port)):
            missed = run(rundir, f"headgate sub --since {number} --count 1 demo.", **wall)
            assert '"on": false' in missed or '"on":false' in missed
    page = terminal(rundir, f"exec {serve.replace('8000', '0').replace('python3', 'python3 -u')}", "Serving")
    (rundir / "index.html").write_text(DASHBOARD.block("html", "client.js"))
    with page as lines:
        (there,) = re.findall(r"http://[^)/]+", lines[-1])
        with urllib.request.urlopen(f"{there}/", timeout=10) as answer:
            assert b"The wall" in answer.read()


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
