"""What each unit starts keeps what the unit promises systemd: it says when it is ready, keeps the watchdog quiet, lives
through a reload, says that it leaves, and ends with a code that means what the unit thinks it means.

systemd itself is a socket here; paths of the machine are folders of the test.
"""

import contextlib
import grp
import os
import shlex
import signal
import subprocess
import sys

import pytest

from broker import endings
from broker.settings import OsloSection
from tests.deploy import units
from tests.live.manager import manager

SETTINGS = {
    "broker.toml": "",
    "gateway.toml": '[[listen]]\nurl = "http://127.0.0.1:0"\n',
    "nfp.toml": '[nfp]\nendpoint = "tcp://127.0.0.1:*"\n',
    "oslo.toml": "[oslo]\nnode = 'n7'\n" + "".join(f"{room}_port = 0\n" for room in OsloSection().run),
}
"""Of each program: ports that are free, defaults else."""
PLACES = ("etc", "run", "var/lib")
WATCHDOG_S = 0.1


def marks(name):
    """A gateway takes longer to start than the others, which stand for it where time is short."""
    return pytest.mark.patient if name.startswith("headgate-gateway") else ()


@pytest.fixture(params=[pytest.param(name, marks=marks(name)) for name in units.names()])
def unit(request):
    return units.read(request.param)


@pytest.fixture
def folder(rundir):
    """Stands for the machine's root."""
    for place in PLACES:
        (rundir / place / "headgate").mkdir(parents=True, mode=0o700)
    for name, text in SETTINGS.items():
        (rundir / "etc/headgate" / name).write_text(text)
    return rundir


def inside(text, folder):
    for place in PLACES:
        text = text.replace(f"/{place}/", f"{folder}/{place}/")
    return text


def command(unit, folder):
    """What systemd would execute, as this user and below ``folder``."""
    group = grp.getgrgid(os.getgid()).gr_name
    text = (
        units.one(unit, "ExecStart")
        .replace("%i", "directory")
        .replace("--ipc-group openstack", f"--ipc-group {group}")
    )
    _program, *words = shlex.split(inside(text, folder))
    return [sys.executable, "-P", "-m", "broker.cli.main", *words]


def environment(unit, folder):
    """What systemd would say of folders, and what the unit itself does."""
    section = unit["Service"]
    found = {}
    for kind, variable, place in (
        ("RuntimeDirectory", "RUNTIME_DIRECTORY", "run"),
        ("StateDirectory", "STATE_DIRECTORY", "var/lib"),
    ):
        if kind in section:
            paths = [folder / place / name for name in units.one(unit, kind).split()]
            for path in paths:
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
            found[variable] = ":".join(map(str, paths))
    for assignment in section.get("Environment", []):
        name, _, value = inside(assignment, folder).partition("=")
        found[name] = value
    return found


@contextlib.contextmanager
def started(unit, folder, environ):
    """The process; killed at the end if it is still there."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command(unit, folder), env=environ | environment(unit, folder), stdout=log, stderr=log, cwd=folder
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_unit_hears_what_it_waits_for(unit, folder):
    with manager(folder, WATCHDOG_S) as heard, started(unit, folder, heard.environ) as process:
        heard.wait_line("READY=1")
        heard.wait_line("WATCHDOG=1")
        for reload in unit["Service"].get("ExecReload", []):
            assert reload == "kill -HUP $MAINPID"
            process.send_signal(signal.SIGHUP)
        heard.wait_beats(2)  # it turns on behind the reload
        process.terminate()
        heard.wait_line("STOPPING=1")
        code = process.wait(units.seconds(units.one(unit, "TimeoutStopSec")))
        assert code == 0, (folder / "log").read_text()


def test_a_wrong_configuration_is_not_tried_again(unit, folder):
    for name in SETTINGS:
        (folder / "etc/headgate" / name).write_text("nonsense = 1\n")
    with manager(folder) as heard, started(unit, folder, heard.environ) as process:
        code = process.wait(20)
        log = (folder / "log").read_text()
        assert code == endings.CONFIG, log
        assert "nonsense" in log
        heard.flush()
        assert ["READY=1"] not in heard.heard
