"""What the guide tells people to do with oslo.messaging works as written."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.oslo import ROOT, new_host, oslo_python
from tests.live.pages import Page
from tests.story.test_readme_nfp import program, until

block = Page("guides/oslo.md").block

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


@pytest.fixture
def env(rundir: Path) -> dict[str, str]:
    """The environment of somebody who installed ``headgate[oslo]``, with a folder of its own."""
    python = Path(oslo_python())
    return {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "HEADGATE_OSLO_DIR": str(rundir / "oslo"),
        "PYTHONPATH": "",
    }


def run(env: dict[str, str], text: str) -> str:
    done = subprocess.run(
        ["bash", "-ec", text], env=env, capture_output=True, text=True, timeout=90, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_command(env: dict[str, str]) -> None:
    out = run(env, block("sh", "example/run.py"))
    assert "a call, a cast, a fan-out and a notification were delivered" in out


@pytest.fixture
def stock(env: dict[str, str], rundir: Path) -> Iterator[Path]:
    """The proxy and the server ``a``; the log of the latter."""
    proxy = [*block("sh", "headgate oslo proxy").splitlines()[0].split(), "--host", new_host()]
    with program(proxy, env, rundir / "proxy.log") as log:
        until(log, "Ctrl-C ends it")
        words = block("sh", "example/stock.py a").split()
        words[1] = str(ROOT / words[1])
        with program(words, env, rundir / "stock.log") as log:
            until(log, "a: ready")
            yield log


def test_by_hand(env: dict[str, str], stock: Path) -> None:
    out = run(env, block("sh", "headgate oslo call stock"))
    assert "orders: a has 6 bolts left" in out
    assert re.search(r'"?left"?.*8', out)  # 10 - 4, 4 back, 2 more
    for said in ("a: recounted", "a: orders says order.placed 1", "order.placed 2", "a: restocked 2 of bolt"):
        until(stock, said)
    for room in ("call", "fanout", "notify", "cast", "directory"):
        assert room in out


def test_from_the_flux_broker(env: dict[str, str], rundir: Path) -> None:
    env = {**env, "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    place = ["--listen", "http://127.0.0.1:0", "--broker-set", f"oslo.host={new_host()}"]
    with program(["headgate", "up", "--oslo", *place], env, rundir / "up.log") as up:
        env["FLUX_URI"] = until(up, r"FLUX_URI=(\S+)")[1]
        with program(
            [oslo_python(), str(ROOT / "deploy/oslo/example/stock.py"), "a"], env, rundir / "s.log"
        ) as log:
            until(log, "a: ready")
            call, listen = block("sh", "headgate rpc oslo.").splitlines()
            assert '"server":"a"' in run(env, call).replace(" ", "")
            notify = block("sh", "headgate oslo notify notifications")
            seen = subprocess.Popen(listen.split(), env=env, stdout=subprocess.PIPE, text=True)
            calls = 0
            while seen.poll() is None:  # the first ones may be before it has subscribed
                calls += 1
                assert calls < 10
                run(env, notify)
            assert "oslo.notify.openstack.notifications.info" in seen.communicate(timeout=30)[0]
