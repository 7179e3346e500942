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

from broker.endpoints import UNIX_PATH_BYTES
from broker.local.command import INSIST
from broker.local.tree import STOP_S
from tests.live import starter
from tests.live.brokers import without_progress
from tests.live.verbs import headgate
from tests.tables import for_each

pytestmark = pytest.mark.interpreter

HEADGATE = [sys.executable, "-m", "broker.cli.main"]
START = [*HEADGATE, "start"]


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return starter.ran([*START, *words], loads=starter.START, env=env)


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


SEEN = """cat
echo err >&2
echo $FLUX_URI $HEADGATE_URI
d=$(dirname "${FLUX_URI#local://}"); stat -c "%a %n" "$d"; stat -c %a "$d"/rank-1.cert
grep SigBlk /proc/self/status
grep SigIgn /proc/self/status
headgate status --json
exit 42
"""


def test_command_finds_the_broker():
    """It is inside a whole tree, and its input, output and end are its own."""
    done = subprocess.run(
        [*START, "--size", "4", "--topo", "kary:3", "--", "sh", "-c", SEEN],
        input="in\n",
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, without_progress(done.stderr)) == (42, "err\n")
    said, uris, place, secret, blocked, ignored, status = done.stdout.splitlines()
    mode, path = place.split()
    assert (said, mode, secret) == ("in", "700", "600")
    assert uris == f"local://{path}/local-0 local://{path}/local-0"
    assert not Path(path).exists()
    # 32 and 33 are glibc's own: whoever is started by make, which uses posix_spawn(3), inherits them ignored
    assert (int(blocked.split()[1], 16), int(ignored.split()[1], 16) & 0x7FFFFFFF) == (0, 0)
    seen = json.loads(status)
    assert (seen["state"], seen["topology"], seen["tree"]["status"]) == ("run", "kary:3", "full")
    assert [child["rank"] for child in seen["tree"]["children"]] == [1, 2, 3]


@for_each(
    ("words", "code", "said"),
    [
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL, ""),
        (["no-such-command"], 127, "headgate start: no-such-command: No such file or directory\n"),
        (["/etc/passwd"], 126, "headgate start: /etc/passwd: Permission denied\n"),
    ],
)
def test_a_command_that_ends_badly(words, code, said, here):
    done = run("--rundir", str(here), "--", *words)
    assert (done.returncode, without_progress(done.stderr)) == (code, said)


def test_a_command_may_open_as_many_descriptors_as_its_user_allows():
    """Not as many as the tree needs: programs that use select(2) would fail."""
    command = ["bash", "-c", 'ulimit -Sn 500; exec "$@" -- bash -c "ulimit -n"', "-", *START, "--size", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=True)
    assert done.stdout == "500\n"


def test_how_the_command_ended_is_known_though_whoever_started_us_ignores_sigchld():
    command = [*START, "--size", "2", "--", "sh", "-c", "grep SigIgn /proc/self/status; exit 5"]
    done = subprocess.run(
        ["env", "--ignore-signal=CHLD", *command], capture_output=True, text=True, timeout=40, check=False
    )
    assert (done.returncode, without_progress(done.stderr)) == (5, "")
    assert not int(done.stdout.split()[1], 16) & 1 << signal.SIGCHLD - 1


def test_shell_is_the_default_command(here):
    shell = here.parent / "shell"
    shell.write_text("#!/bin/sh\necho shell $#\n")
    shell.chmod(0o700)
    done = run("--rundir", str(here), env={**os.environ, "SHELL": str(shell)})
    assert done.stdout == "shell 0\n"


# ---------------------------------------------------------------- signals to the launcher


STAYS = "echo ready; exec sleep 60"
IGNORES_TERM = "trap '' TERM; echo ready; echo $$; while :; do sleep 0.05; done"
"""As interactive shells do."""


def start_waiting(here: Path, *words: str) -> subprocess.Popen:
    """A launcher whose command has said that it runs."""
    command = [*START, "--size", "2", "--rundir", str(here), "--", *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.patient
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_launcher_reaches_the_command(number, here):
    process = start_waiting(here, "sh", "-c", STAYS)
    pids = pids_of(here, 2)
    process.send_signal(number)
    assert without_progress(process.communicate(timeout=20)[1]) == ""
    assert process.returncode == 128 + number
    assert not any(map(alive, pids))


def test_command_may_have_its_own_idea_of_sigterm(here):
    process = start_waiting(here, "sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    pids = pids_of(here, 2)
    process.send_signal(signal.SIGTERM)
    assert without_progress(process.communicate(timeout=20)[1]) == ""
    assert process.returncode == 7
    assert not any(map(alive, pids))


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


def test_brokers_and_command_end_with_a_launcher_that_is_killed(rundir):
    process = start_waiting(rundir / "r", "sh", "-c", IGNORES_TERM)
    assert process.stdout is not None
    pids = [*pids_of(rundir / "r", 2), int(process.stdout.readline())]
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


@pytest.mark.patient
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
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, without_progress(err)) == (0, "", "")
    assert not any(map(alive, pids))


@pytest.mark.patient
def test_broker_that_dies_is_reported_and_the_others_go_on(here):
    process, _ = wait_instance(here, "--size", "3")
    pids = pids_of(here, 3)
    os.kill(pids[2], signal.SIGKILL)
    assert process.stderr is not None
    for line in process.stderr:
        if line == f"headgate: rank 2 (pid {pids[2]}) ended with signal 9 (SIGKILL)\n":
            break
    assert alive(pids[0])
    assert alive(pids[1])
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.mark.patient
def test_a_second_signal_ends_at_once_who_does_not_leave(here):
    """A frozen broker would be waited for."""
    process, _ = wait_instance(here, "--size", "2")
    os.kill(pids_of(here, 2)[1], signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert (process.returncode, time.monotonic() - began < STOP_S / 2) == (0, True)


# ---------------------------------------------------------------- what is wrong at the start


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


@for_each(
    ("words", "code", "lines", "said"),
    [
        (["--size", "0"], 2, 1, "saw '0', expected a number from 1 on"),
        (["--size", "x"], 2, 1, "saw 'x', expected a number from 1 on"),
        (["--bogus"], 2, 1, "--bogus"),
        (["--wait"], 2, 1, "saw --wait and the command 'true'"),
        (["--topo", "ring"], 78, 1, "kary:K"),
        (["--config", "{rundir}/b.toml"], 78, 1, "{rundir}/b.toml:2: broker.rnak"),
        (["--rundir", "{rundir}/open"], 78, 1, "nobody else may write to"),
        (["--rundir", "{rundir}/" + "x" * 100], 78, 2, "107 bytes"),
    ],
)
def test_wrong_words(rundir, words, code, lines, said):
    (rundir / "b.toml").write_text("[broker]\nrnak = 1\n")
    (rundir / "open").mkdir(exist_ok=True)
    (rundir / "open").chmod(0o777)
    done = run(*(word.format(rundir=rundir) for word in words), "--", "true")
    assert done.returncode == code
    assert said.format(rundir=rundir) in done.stderr
    assert done.stderr.count("\n") == lines
    assert sorted(entry.name for entry in rundir.iterdir()) == ["b.toml", "open"]
    assert list((rundir / "open").iterdir()) == []


def test_a_run_directory_may_have_the_longest_path_that_a_socket_has_room_for(rundir):
    room = UNIX_PATH_BYTES - len(f"{rundir}//local-0")
    assert run("--size", "2", "--rundir", f"{rundir}/{'x' * room}", "--", "true").returncode == 0


def test_rank_that_cannot_start_says_why_once(here):
    done = run(
        "--size", "2", "--rundir", str(here), "--set", "access.admin_users=['no-such-user']", "--", "true"
    )
    assert done.returncode == 75  # who knows the name may come up later
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


@pytest.mark.patient
def test_lock_is_held_as_long_as_a_broker_lives(rundir):
    """A launcher that was killed leaves its brokers a moment: nobody may start between them."""
    process = start_waiting(rundir / "r", "sh", "-c", STAYS)
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
