"""The first process of a container (PID 1): it ignores what it does not handle, and yet it ends when it is told to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.story, pytest.mark.patient]

ALONE = ("unshare", "--pid", "--fork", "--kill-child")
"""The command that follows is PID 1 of a namespace of its own, and ends with whoever began it."""

HELD = """
import os, sys, time

class Holds:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            print(os.readlink("/proc/self"), os.getpid(), flush=True)
            while True:
                time.sleep(0.01)

sys.meta_path.insert(0, Holds())
from headgate import main
sys.argv = ["headgate", *sys.argv[2:]]
sys.exit(main())
"""
"""The console script, standing still where it would load a module; it says its pid, as others and as it sees it."""

MOMENTS = {
    "broker": "broker.cli.main",
    "node": "broker.node.bootstrap",
    "sockets": "zmq",
}


@pytest.fixture(scope="module", autouse=True)
def namespaces():
    try:
        tried = subprocess.run([*ALONE, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("optional: there is no unshare")
    if tried.returncode:
        pytest.skip(f"optional: no process namespaces here: {tried.stderr.strip()}")


def begun(held: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*ALONE, sys.executable, "-c", HELD, held, *words], stdout=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait(30)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("held", MOMENTS.values(), ids=MOMENTS.keys())
def test_sigterm_ends_it_while_modules_load(held, tmp_path: Path):
    process = begun(held, "broker", "--set", f"broker.rundir={tmp_path}/run")
    pid, own = map(int, process.stdout.readline().split())
    assert own == 1
    os.kill(pid, signal.SIGTERM)
    assert ended(process) == 128 + signal.SIGTERM


def test_sigterm_ends_a_gateway_while_modules_load():
    process = begun("aiohttp", "gateway", "--upstream", "local:///nowhere")
    pid, own = map(int, process.stdout.readline().split())
    assert own == 1
    os.kill(pid, signal.SIGTERM)
    assert ended(process) == 128 + signal.SIGTERM
