"""Processes that are looked after together: order, restarts, the ends that are final, and the end of all."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.children import supervisor as children
from broker.children.child import Program, Restarts
from broker.cli.exits import CONFIG, FAILED, OK, TEMPFAIL
from broker.cli.nfp.up import Processes

PATIENCE_S = 40.0
ENDS_MAX = 3
RESTARTS = Restarts(0.01, 0.02, ends_max=ENDS_MAX)
READY = """
import os, socket, signal, sys, time
def ready():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"READY=1\\nSTATUS=well", os.environ["NOTIFY_SOCKET"])
"""
STAYS = READY + "ready()\nsignal.pause()"


class Stage:
    """What was told, and a supervisor over programs in Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[tuple[str, str, str]] = []
        self.changed = asyncio.Event()

    def tell(self, name: str, event: str, text: str) -> None:
        self.told.append((name, event, text))
        self.changed.set()

    def events(self, *wanted: str) -> list[tuple[str, str]]:
        return [(name, event) for name, event, _ in self.told if event in wanted]

    def texts(self, event: str) -> list[str]:
        return [text for _, each, text in self.told if each == event]

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                self.changed.clear()
                await self.changed.wait()

    def supervisor(self, *programs: Program, patience_s: float = PATIENCE_S) -> Processes:
        return Processes(programs, self.tell, str(self.folder), patience_s=patience_s)


@pytest.fixture
def stage(rundir: Path) -> Stage:
    return Stage(rundir)


def program(name: str, code: str, *depends_on: str, needed: bool = False, **environ: str) -> Program:
    words = [sys.executable, "-S", "-c", code]
    return Program(name, lambda: words, depends_on, environ, needed=needed, restarts=RESTARTS)


def started(supervisor: Processes) -> asyncio.Task[int]:
    return asyncio.get_running_loop().create_task(left(supervisor), name="supervisor")


async def left(supervisor: Processes) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return await supervisor.run()


def test_they_start_in_order_and_end_in_order(stage: Stage) -> None:
    async def story() -> int:
        supervisor = stage.supervisor(
            program("b", STAYS, needed=True),
            program("w2", STAYS, "b", "w1"),
            program("w1", STAYS, "b"),
        )
        running = started(supervisor)
        await stage.until(lambda: stage.events("up"))
        supervisor.leave()
        return await running

    assert asyncio.run(story()) == OK
    starts = [(name, event) for name in ("b", "w1", "w2") for event in ("starting", "ready")]
    assert stage.events("starting", "ready") == starts
    ends = [name for name, _ in stage.events("left")]
    assert (sorted(ends[:2]), ends[2:]) == (["w1", "w2"], ["b"])


def test_who_depends_on_one_that_is_being_started_again_waits_for_it(stage: Stage) -> None:
    async def story() -> int:
        supervisor = stage.supervisor(program("b", STAYS, needed=True), program("w", STAYS, "b"))
        broker = supervisor.children["b"]
        running = started(supervisor)
        await stage.until(lambda: stage.events("ready"))
        broker.ready = False  # it has just died, before w looked
        broker.settled.clear()
        await asyncio.sleep(0.05)
        broker.send_signal(signal.SIGKILL)
        await stage.until(lambda: stage.events("up"))
        supervisor.leave()
        return await running

    assert asyncio.run(story()) == OK
    assert [name for name, _ in stage.events("ready")] == ["b", "b", "w"]


def test_lines_and_variables(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    code = f"{READY}print(os.environ['A'], os.environ.get('WATCHDOG_USEC'))\nprint('x' * 100_000 + 'y')\n"
    code += "sys.stderr.write('last')\n"
    assert asyncio.run(left(stage.supervisor(program("w", code, A="a")))) == OK
    first, *pieces, last = stage.texts("line")
    assert first == "a None"
    assert "".join(pieces) == "x" * 100_000 + "y"
    assert (last, stage.texts("left")) == ("last", ["has left"])


def test_who_fails_is_started_again_and_left_after_a_while(stage: Stage) -> None:
    code = "import sys; print('oh no'); print(); sys.exit(3)"
    assert asyncio.run(left(stage.supervisor(program("w", code)))) == FAILED
    assert len(stage.events("starting")) == ENDS_MAX
    assert stage.texts("ended")[0] == "ended with code 3 (oh no), is started again in 0.01 s"
    assert stage.texts("left") == ["ended with code 3 (oh no) 3 times in a row, is not started again"]


def test_who_was_ready_is_started_again_however_often_it_ends(stage: Stage) -> None:
    async def story() -> int:
        supervisor = stage.supervisor(program("w", f"{READY}ready()\nos.kill(os.getpid(), signal.SIGKILL)"))
        running = started(supervisor)
        await stage.until(lambda: len(stage.texts("ended")) > ENDS_MAX)
        supervisor.leave()
        return await running

    assert asyncio.run(story()) == OK
    wanted = "ended with signal 9 (SIGKILL) (without a word) 4 times in a row, is started again in 0.02 s"
    assert stage.texts("ended")[ENDS_MAX] == wanted


def test_an_end_by_a_signal_without_a_name_is_one_like_others(stage: Stage) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 1)"
    assert asyncio.run(left(stage.supervisor(program("w", code)))) == FAILED
    ended = f"ended with signal {signal.SIGRTMIN + 1} (without a word)"
    assert stage.texts("left") == [f"{ended} 3 times in a row, is not started again"]


def test_one_whose_end_nobody_would_notice_is_started_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.pidfd_open

    def fails_once(pid: int) -> int:
        monkeypatch.setattr(os, "pidfd_open", opened)
        raise OSError("no descriptor")

    monkeypatch.setattr(os, "pidfd_open", fails_once)
    lives = [STAYS, ""]
    again = Program("a", lambda: [sys.executable, "-S", "-c", lives.pop(0)])
    assert asyncio.run(left(stage.supervisor(again))) == OK
    assert [name for name, _ in stage.events("ended", "left")] == ["a", "a"]


def test_a_wrong_configuration_is_not_tried_again(stage: Stage) -> None:
    assert asyncio.run(left(stage.supervisor(program("w", "import sys; sys.exit(78)")))) == CONFIG
    assert len(stage.events("starting")) == 1
    assert stage.texts("left") == ["ended with code 78 (without a word), is not started again"]


def test_what_may_pass_by_itself_is_told_as_such_when_it_did_not(stage: Stage) -> None:
    broker = program("b", "import sys; sys.exit(75)", needed=True)
    assert asyncio.run(left(stage.supervisor(broker, program("w", STAYS, "b")))) == TEMPFAIL
    assert stage.events("starting") == [("b", "starting")] * ENDS_MAX


def test_a_program_that_is_not_there(stage: Stage) -> None:
    absent = Program("w", lambda: ["/no/such/program"])
    assert asyncio.run(left(stage.supervisor(absent))) == CONFIG
    assert "cannot be started: " in stage.texts("left")[0]


def test_one_that_is_killed_comes_back(stage: Stage) -> None:
    async def story() -> int:
        supervisor = stage.supervisor(program("w", f"{READY}print(os.getpid())\n{STAYS}"))
        running = started(supervisor)
        await stage.until(lambda: stage.events("ready"))
        os.kill(int(stage.texts("line")[0]), signal.SIGKILL)
        await stage.until(lambda: len(stage.events("ready")) == 2)
        supervisor.leave()
        return await running

    assert asyncio.run(story()) == OK
    assert stage.texts("ended") == [
        f"ended with signal 9 (SIGKILL) ({stage.texts('line')[0]}), is started again in 0.01 s"
    ]


def test_who_depends_on_one_that_is_left_is_not_started(stage: Stage) -> None:
    broken = program("a", "import sys; sys.exit(78)")
    assert asyncio.run(left(stage.supervisor(broken, program("w", STAYS, "a")))) == FAILED
    assert stage.texts("left")[1] == "is not started: a, which it depends on, is not there"
    assert stage.events("starting") == [("a", "starting")]


def test_without_the_first_there_are_no_others(stage: Stage) -> None:
    async def story() -> int:
        supervisor = stage.supervisor(program("b", STAYS, needed=True), program("w", STAYS, "b"))
        running = started(supervisor)
        await stage.until(lambda: stage.events("up"))
        pid = int(stage.texts("starting")[0].rpartition(" ")[2])
        for _ in range(ENDS_MAX):
            os.kill(pid, signal.SIGKILL)
            ready = len(stage.events("ready"))
            await stage.until(
                lambda n=ready: len(stage.events("ready")) > n or ("b", "left") in stage.events("left")
            )
            pid = int(
                [text for name, event, text in stage.told if (name, event) == ("b", "starting")][-1].split()[
                    -1
                ]
            )
        return await running

    assert asyncio.run(story()) == FAILED
    assert stage.events("left") == [("b", "left"), ("w", "left")]


def test_others_go_on_when_one_is_left(stage: Stage) -> None:
    async def story() -> int:
        supervisor = stage.supervisor(
            program("b", STAYS, needed=True), program("x", "import sys; sys.exit(2)"), program("w", STAYS)
        )
        running = started(supervisor)
        await stage.until(lambda: stage.events("up"))
        assert stage.texts("up")[0].endswith(": b, w; not there: x")
        supervisor.leave()
        return await running

    assert asyncio.run(story()) == OK


def test_a_second_signal_and_time_end_who_does_not_listen(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "HURRY_S", 0.05)
    deaf = (
        f"{READY}signal.signal(signal.SIGTERM, lambda *_: print('no'))\nready()\nwhile True: signal.pause()"
    )

    async def story(stage: Stage, patience_s: float, signals: int) -> list[str]:
        supervisor = stage.supervisor(program("w", deaf), patience_s=patience_s)
        running = started(supervisor)
        await stage.until(lambda: stage.events("ready"))
        for _ in range(signals):
            supervisor.leave()
            await stage.until(lambda: "no" in stage.texts("line"))
        assert await running == OK
        return stage.texts("line")

    assert asyncio.run(story(stage, PATIENCE_S, 2)) == ["no", "no"]
    assert set(asyncio.run(story(Stage(stage.folder), 0.5, 1))) == {"no"}


def test_a_pipe_that_a_grandchild_keeps_open_holds_up_nobody(stage: Stage) -> None:
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-S', '-c', 'input()'], stdin=-1).pid)"
    code = code.replace("input()", "import time; time.sleep(60)")
    assert asyncio.run(left(stage.supervisor(program("w", code)))) == OK
    os.kill(int(stage.texts("line")[0]), signal.SIGKILL)
