"""`headgate start` as a person uses it: real processes, real signals, nothing left behind."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.cli.command import INSIST
from tests.live.brokers import without_progress
from tests.live.verbs import headgate

pytestmark = pytest.mark.interpreter

HEADGATE = [sys.executable, "-m", "broker.cli.main"]
START = [*HEADGATE, "start"]


def run(*words: str, timeout: float = 30, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*START, *words], capture_output=True, text=True, timeout=timeout, check=False, **options
    )


def until(condition: Callable[[], object], seconds: float = 40.0) -> None:
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {condition}")


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def pids_of(rundir: Path, size: int) -> list[int]:
    """The brokers, by rank, as they say themselves."""
    found = []
    for rank in range(size):
        done = headgate("attr", "get", "broker.pid", "--uri", f"local://{rundir}/local-{rank}")
        found.append(int(done.stdout))
    return found


@pytest.fixture
def here(rundir: Path) -> Iterator[Path]:
    """A place for a run directory that is not there yet; after the test it must be gone again."""
    yield rundir / "r"
    assert not (rundir / "r").exists()


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize("size", ["1", "4"])
def test_exit_code_is_that_of_the_command(size, here):
    done = run("--size", size, "--rundir", str(here), "--", "sh", "-c", "exit 42")
    assert done.returncode == 42
    assert without_progress(done.stderr) == ""


def test_input_and_output_are_those_of_the_command():
    done = run("--", "sh", "-c", "cat; echo out; echo err >&2", input="in\n")
    assert (done.stdout, without_progress(done.stderr), done.returncode) == ("in\nout\n", "err\n", 0)


def test_command_finds_the_broker(here):
    done = run(
        "--size",
        "2",
        "--rundir",
        str(here),
        "--",
        "sh",
        "-c",
        "echo $FLUX_URI $HEADGATE_URI; headgate attr get size",
    )
    assert done.stdout == f"local://{here}/local-0 local://{here}/local-0\n2\n"


def test_the_whole_tree_is_there_when_the_command_starts():
    done = run("--size", "7", "--topo", "kary:3", "--", "headgate", "status", "--json")
    seen = json.loads(done.stdout)
    assert seen["state"] == "run"
    assert seen["topology"] == "kary:3"
    assert seen["tree"]["status"] == "full"
    assert [child["rank"] for child in seen["tree"]["children"]] == [1, 2, 3]


def test_run_directory_is_private_and_of_its_own_by_default():
    script = 'd=$(dirname "${FLUX_URI#local://}"); stat -c "%a %n" "$d"; stat -c %a "$d"/rank-1.cert'
    done = run("--size", "2", "--", "sh", "-c", script)
    mode, path, secret = done.stdout.split()
    assert (mode, secret) == ("700", "600")
    assert not Path(path).exists()


def test_command_killed_by_a_signal(here):
    done = run("--rundir", str(here), "--", "sh", "-c", "kill -KILL $$")
    assert done.returncode == 128 + signal.SIGKILL


def test_command_that_is_not_there(here):
    done = run("--rundir", str(here), "--", "no-such-command")
    assert done.returncode == 127
    assert done.stderr == "headgate start: no-such-command: No such file or directory\n"


def test_command_that_is_no_program(here):
    done = run("--rundir", str(here), "--", "/etc/passwd")
    assert done.returncode == 126


def test_signals_are_not_blocked_in_the_command():
    done = run(
        "--", sys.executable, "-c", "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    )
    assert done.stdout == "set()\n"


def test_shell_is_the_default_command(here):
    shell = here.parent / "shell"
    shell.write_text("#!/bin/sh\necho shell $#\n")
    shell.chmod(0o700)
    done = run("--rundir", str(here), env={**os.environ, "SHELL": str(shell)})
    assert done.stdout == "shell 0\n"


def test_ready_in_time():
    """The promise is 1 s for four brokers on a quiet machine; this only catches a start that has lost its way."""
    began = time.monotonic()
    assert run("--size", "4", "--", "true").returncode == 0
    assert time.monotonic() - began < 10


# ---------------------------------------------------------------- signals to the launcher


UNTIL_LEFT = "echo ready; exec cat"
"""A command that outlives a killed launcher until its input ends, which is that of the launcher."""


def start_waiting(here: Path, *words: str) -> subprocess.Popen:
    """A launcher whose command has said that it runs."""
    command = [*START, "--size", "2", "--rundir", str(here), "--", *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.patient),
        pytest.param(signal.SIGHUP, marks=pytest.mark.patient),
    ],
)
def test_signal_to_the_launcher_reaches_the_command(number, here):
    process = start_waiting(here, "sh", "-c", "echo ready; exec sleep 60")
    pids = pids_of(here, 2)
    process.send_signal(number)
    assert without_progress(process.communicate(timeout=20)[1]) == ""
    assert process.returncode == 128 + number
    assert not any(map(alive, pids))


def test_command_may_have_its_own_idea_of_sigterm(here):
    process = start_waiting(here, "sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 7


@pytest.mark.patient
@pytest.mark.parametrize("stopped", [False, True])
def test_command_that_ignores_signals_is_killed(here, stopped):
    """Also by a launcher that was itself stopped when it had to insist."""
    process = start_waiting(here, "sh", "-c", "trap '' TERM HUP; echo ready; while :; do sleep 0.05; done")
    process.send_signal(signal.SIGTERM)
    if stopped:
        time.sleep(0.5)  # it has passed it on
        process.send_signal(signal.SIGSTOP)
        time.sleep(INSIST[0][0])
        process.send_signal(signal.SIGCONT)
    process.communicate(timeout=40)
    assert process.returncode == 128 + signal.SIGKILL


def test_brokers_end_with_a_launcher_that_is_killed(rundir):
    process = start_waiting(rundir / "r", "sh", "-c", UNTIL_LEFT)
    pids = pids_of(rundir / "r", 2)
    process.kill()
    until(lambda: not any(map(alive, pids)))
    process.communicate(timeout=20)


@pytest.mark.patient
def test_signal_while_starting(here):
    """Whenever it comes, nothing is left behind."""
    for delay in (0.15, 0.3, 0.45):
        process = subprocess.Popen(
            [*START, "-n", "4", "--rundir", str(here), "--", "sleep", "60"], stderr=subprocess.PIPE
        )
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode in (128 + signal.SIGTERM, -signal.SIGTERM)
        assert not (here / "local-0").exists()


# ---------------------------------------------------------------- a terminal


def test_ctrl_c_at_the_terminal_is_for_the_command(here):
    """The terminal's signal reaches the command once and no broker; the command decides."""
    script = (
        "import signal,time\ngot=[]\nsignal.signal(2,lambda *a: got.append(1))\nprint('ready',flush=True)\n"
    )
    script += "while not got: time.sleep(0.02)\ntime.sleep(0.5)\nprint('got',len(got),flush=True)\n"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*START, "--rundir", str(here), "--", sys.executable, "-c", script])
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    try:
        while data := os.read(terminal, 1024):
            said += data
    except OSError:  # how a terminal says that the other side is gone
        pass
    assert b"got 1" in said
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


# ---------------------------------------------------------------- --wait


def wait_instance(here: Path, *words: str) -> tuple[subprocess.Popen, str]:
    command = [*START, "--wait", "--rundir", str(here), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        if line.startswith("Ctrl-C"):
            return process, said
    raise AssertionError(process.communicate())


def test_wait_says_where_and_stays(here):
    process, said = wait_instance(here, "--size", "3")
    assert re.findall(r"rank (\d) +(\S+)", said) == [
        (str(rank), f"local://{here}/local-{rank}") for rank in range(3)
    ]
    (words,) = re.findall(r"^  (\. .+)$", said, re.MULTILINE)
    other = subprocess.run(
        [
            "bash",
            "-c",
            f"FLUX_URI=x; {words}; headgate attr get rank; python -c 'import broker'; echo $FLUX_URI",
        ],
        env={"PATH": os.defpath, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert other.stdout == f"0\nlocal://{here}/local-0\n"
    pids = pids_of(here, 3)
    names = [Path(f"/proc/{pid}/comm").read_text() for pid in pids]
    assert names == [f"headgate-{rank}\n" for rank in range(3)]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == 0
    assert not any(map(alive, pids))


@pytest.mark.patient
def test_broker_that_dies_is_reported_and_the_others_go_on(here):
    process, _ = wait_instance(here, "--size", "3")
    pids = pids_of(here, 3)
    os.kill(pids[2], signal.SIGKILL)
    assert process.stderr is not None
    for line in process.stderr:
        if line == f"headgate: rank 2 (pid {pids[2]}) ended with code 137\n":
            break
    assert alive(pids[0])
    assert alive(pids[1])
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_wait_and_a_command_contradict_each_other():
    done = run("--wait", "--", "true")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


# ---------------------------------------------------------------- what is wrong at the start


def test_broken_configuration(here):
    file = here.parent / "b.toml"
    file.write_text("[broker]\nrnak = 1\n")
    done = run("--config", str(file), "--rundir", str(here), "--", "true")
    assert done.returncode == 78
    assert f"{file}:2: broker.rnak" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.patient
def test_configuration_is_taken_over(here):
    file = here.parent / "b.toml"
    file.write_text(
        '[broker]\nlog_level = "error"\n[broker.attrs]\nsite = "north"\n[access]\nallow_guest_user = true\n'
    )
    words = ["--config", str(file), "--set", "broker.attrs.floor=2", "--rundir", str(here)]
    done = run(
        *words, "--", "sh", "-c", "headgate attr get site; headgate attr get floor; headgate rpc config.get"
    )
    site, floor, shown = done.stdout.splitlines()
    assert (site, floor) == ("north", "2")
    assert json.loads(shown)["access"]["allow-guest-user"] is True


@pytest.mark.parametrize("words", [["--size", "0"], ["--size", "x"], ["--bogus"]])
def test_wrong_options(words):
    assert run(*words, "--", "true").returncode == 2


def test_wrong_topology():
    done = run("--topo", "ring", "--", "true")
    assert done.returncode == 78
    assert "kary:K" in done.stderr


def test_rank_that_cannot_start_says_why_once(here):
    done = run(
        "--size", "2", "--rundir", str(here), "--set", "access.admin_users=['no-such-user']", "--", "true"
    )
    assert done.returncode == 78
    assert "no-such-user" in done.stderr
    assert "before it was ready" in done.stderr.splitlines()[-1]


@pytest.mark.patient
def test_second_start_in_the_same_directory_is_refused(here):
    process, _ = wait_instance(here)
    done = run("--rundir", str(here), "--", "true")
    assert done.returncode == 78
    assert "a local tree runs there already" in done.stderr
    assert headgate("ping", "-c", "1", "--uri", f"local://{here}/local-0").returncode == 0
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert run("--rundir", str(here), "--", "true").returncode == 0


def test_directory_that_was_there_stays_and_keeps_what_is_not_ours(rundir):
    rundir.chmod(0o700)
    (rundir / "mine").write_text("precious")
    assert run("--rundir", str(rundir), "--", "true").returncode == 0
    assert [entry.name for entry in rundir.iterdir()] == ["mine"]


def test_directory_that_others_may_write_to_is_refused(rundir):
    rundir.chmod(0o777)
    done = run("--rundir", str(rundir), "--", "true")
    assert done.returncode == 78
    assert "nobody else may write to" in done.stderr


def test_path_too_long_for_a_socket(rundir):
    done = run("--rundir", f"{rundir}/{'x' * 100}", "--", "true")
    assert done.returncode == 78
    assert "107 bytes" in done.stderr
    assert list(rundir.iterdir()) == []


@pytest.mark.patient
def test_lock_is_held_as_long_as_a_broker_lives(rundir):
    """A launcher that was killed leaves its brokers a moment: nobody may start between them."""
    process = start_waiting(rundir / "r", "sh", "-c", UNTIL_LEFT)
    pids = pids_of(rundir / "r", 2)
    os.kill(pids[1], signal.SIGSTOP)
    process.kill()
    until(lambda: not alive(pids[0]))
    with open(rundir / "r" / "lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.kill(pids[1], signal.SIGCONT)
    until(lambda: not any(map(alive, pids)))
    process.communicate(timeout=20)


def test_the_users_bashrc_does_not_hide_the_instance(here, rundir):
    (rundir / ".bashrc").write_text("export FLUX_URI=local:///nowhere HEADGATE_URI=local:///nowhere\n")
    shell, terminal = pty.openpty()
    command = [*START, "--rundir", str(here)]
    environ = {**os.environ, "SHELL": "/bin/bash", "HOME": str(rundir)}
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environ, start_new_session=True
    )
    os.close(terminal)
    os.write(shell, b"echo at $FLUX_URI $HEADGATE_URI\nexit 7\n")
    said = b""
    with contextlib.suppress(OSError):  # EIO: everybody has left it
        while read := os.read(shell, 4096):
            said += read
    os.close(shell)
    assert process.wait(20) == 7
    assert f"at local://{here}/local-0 local://{here}/local-0".encode() in said
