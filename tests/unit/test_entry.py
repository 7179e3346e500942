"""``headgate`` beside somebody else's package ``broker`` or ``gateway``: one line says so and nothing runs."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headgate
from broker import __version__
from broker.cli import diagnosis

pytestmark = pytest.mark.interpreter

ROOT = Path(headgate.__file__).parent


LEAVING = """
import atexit, sys, threading
import broker.cli.main, headgate

def rest(word):
    if threading.current_thread() is not threading.main_thread():
        threading.main_thread().join()
    print(word, flush=True)
    sys.stdin.readline()

if sys.argv[1] == "thread":
    broker.cli.main.main = lambda: threading.Thread(target=rest, args=["a thread is left"]).start() or 3
else:
    atexit.register(rest, "modules are left")
    broker.cli.main.main = lambda: 3
sys.exit(headgate.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("left", ["thread", "modules"])
def test_a_signal_when_the_verb_has_ended_does_not_change_the_exit_code(left, number):
    command = [sys.executable, "-c", LEAVING, left]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout.readline().endswith("left\n")
        process.send_signal(number)
        process.stdin.close()
        assert process.wait(20) == 3
        assert process.stderr.read() == ""


LOADING = """
import os, signal, sys
import headgate

_, loaded, how = sys.argv

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == loaded:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
if how == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.argv = ["headgate", "--version"]
sys.exit(headgate.main())
"""


@pytest.mark.parametrize("loaded", ["broker.cli.main", "broker.cli.exits"])
@pytest.mark.parametrize(("how", "code"), [("heard", 130), ("ignored", 0)])
def test_an_interrupt_while_modules_load_is_no_traceback(loaded, how, code):
    """And what a shell has started in the background goes on."""
    done = subprocess.run(
        [sys.executable, "-c", LOADING, loaded, how], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (code, "")


@pytest.fixture
def site(tmp_path):
    """A folder of packages that comes before ours."""
    shutil.copy(ROOT / "headgate.py", tmp_path)
    return tmp_path


def foreign(site, name, text=""):
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(text)
    info = site / "Some_Broker-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-broker\nVersion: 2.1\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,,\nSome_Broker-2.1.dist-info/RECORD,,\n")


def said(site, *words):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "headgate", *words], cwd=site, env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", headgate.PACKAGES)
def test_the_package_of_somebody_else_is_named(site, name):
    foreign(site, name, "print('loaded')\n")
    code, _out, err = said(site, "doctor")
    assert code == headgate.CONFIG
    assert err == (
        f"headgate: the package {name} at {site}/{name}/__init__.py is not Headgate's, but of some-broker 2.1; "
        f"{headgate.ADVICE}\n"
    )


def test_one_that_cannot_be_imported(site):
    foreign(site, "broker", "import nothing_of_this_name")
    code, out, err = said(site, "--version")
    assert (code, out) == (headgate.CONFIG, "")
    assert err.count("\n") == 1
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'), but of some-broker 2.1; " in err


def test_with_our_own_a_verb_runs(site):
    assert said(site, "--version") == (0, f"headgate {__version__}\n", "")


def test_doctor_tells_who_else_has_packages_of_these_names(site, monkeypatch):
    assert diagnosis.packages() == diagnosis.ok("broker and gateway are Headgate's")
    foreign(site, "gateway")
    monkeypatch.syspath_prepend(site)
    found = diagnosis.packages()
    assert (found.level, found.advice) == ("warn", headgate.ADVICE)
    assert "some-broker 2.1" in found.text
    monkeypatch.setattr(sys.modules["broker"], "__distribution__", "some-broker")
    assert diagnosis.packages().level == "fail"
