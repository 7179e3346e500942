"""After a restart a pipeline waits for the servers that it had: as many, as long as they run, and not for ever."""

import json
import os
import subprocess
import sys

import pytest

from broker.oslo.names import Pipeline, roster_file
from broker.oslo.proxy import restart_gate
from broker.oslo.proxy.restart_gate import LOOK_S, REST_S, SAVE_S, RestartGate
from tests.tables import for_each

ME = os.getpid()


class Clock:
    """A reactor whose time the test moves."""

    def __init__(self):
        self.now_s = 0.0
        self.due = []
        self.said = []

    def now(self):
        return self.now_s

    def say(self, _level, text, values):
        self.said.append(text % values)

    def call_later(self, delay_s, call, *args):
        timer = Timer(self.now_s + delay_s, call, args)
        self.due.append(timer)
        return timer

    def wait(self, seconds):
        until_s = self.now_s + seconds
        while ready := sorted(
            (each for each in self.due if each.at_s <= until_s), key=lambda each: each.at_s
        ):
            self.due.remove(ready[0])
            self.now_s = max(self.now_s, ready[0].at_s)
            if not ready[0].cancelled:
                ready[0].call(*ready[0].args)
        self.now_s = until_s


class Timer:
    def __init__(self, at_s, call, args):
        self.at_s, self.call, self.args, self.cancelled = at_s, call, args, False

    def cancel(self):
        self.cancelled = True


class Servers:
    """A pipeline of which the test says who is registered."""

    def __init__(self, folder):
        self.path = folder / roster_file(Pipeline.CALL)
        self.clock = Clock()
        self.here = {}
        self.done = 0
        self.gate = RestartGate(
            self.clock, str(folder), Pipeline.CALL, lambda: dict(self.here), self.finished
        )

    def finished(self):
        self.done += 1

    def note(self, **pids):
        self.path.write_text(json.dumps({pid.removeprefix("p"): size for pid, size in pids.items()}))


@pytest.fixture
def servers(tmp_path):
    return Servers(tmp_path)


def dead_pid():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_nobody_was_here_so_nobody_is_waited_for(servers):
    servers.gate.begin()
    assert (servers.done, servers.gate.waiting) == (1, False)


def test_it_waits_until_all_are_back_with_as_much(servers):
    servers.note(**{f"p{ME}": 2, f"p{os.getppid()}": 1})
    servers.gate.begin()
    assert servers.gate.status() == {"rejoining": 2}
    servers.here = {ME: 1, os.getppid(): 1}
    servers.gate.changed()
    assert servers.done == 0
    servers.here[ME] = 2
    servers.gate.changed()
    assert (servers.done, servers.gate.status()) == (1, {"rejoining": 0})
    servers.clock.wait(10)
    assert servers.done == 1


def test_who_has_ended_is_not_waited_for(servers):
    servers.note(**{f"p{dead_pid()}": 1})
    servers.gate.begin()
    assert servers.done == 1


def test_who_does_not_come_back_is_waited_for_a_while(servers):
    servers.note(**{f"p{ME}": 1})
    servers.gate.begin()
    servers.clock.wait(restart_gate.RESTART_S - LOOK_S)
    assert servers.done == 0
    servers.clock.wait(2 * LOOK_S)
    assert servers.done == 1
    assert "1 server processes have not registered again within" in servers.clock.said[0]


def test_who_is_registered_is_noted_together_and_by_its_owner_alone(servers):
    servers.gate.begin()
    servers.here = {ME: 3, 0: 1, 77: 0}
    for _ in range(5):
        servers.gate.changed()
    assert not servers.path.exists()
    servers.clock.wait(SAVE_S)
    assert json.loads(servers.path.read_text()) == {str(ME): 3}
    assert servers.path.stat().st_mode & 0o777 == 0o600
    servers.here = {ME: 4}
    servers.gate.changed()
    servers.clock.wait(REST_S - SAVE_S)
    assert json.loads(servers.path.read_text()) == {str(ME): 3}, "a file is not replaced for each listener"
    servers.clock.wait(SAVE_S)
    assert json.loads(servers.path.read_text()) == {str(ME): 4}
    servers.here = {}
    servers.gate.changed()
    servers.gate.close(forget=False)
    assert json.loads(servers.path.read_text()) == {}, "what was due is written at the end"


def test_a_second_restart_forgets_nobody_who_was_not_back_yet(servers):
    servers.note(**{f"p{ME}": 2})
    servers.gate.begin()
    servers.here = {ME: 1}
    servers.gate.changed()
    servers.clock.wait(2 * SAVE_S)
    assert json.loads(servers.path.read_text()) == {str(ME): 2}


def test_a_restart_that_is_ended_at_once_forgets_nobody_who_was_not_back_yet(servers):
    servers.note(**{f"p{ME}": 2, f"p{os.getppid()}": 1})
    servers.gate.begin()
    servers.here = {ME: 2}
    servers.gate.changed()
    servers.gate.close(forget=False)
    assert json.loads(servers.path.read_text()) == {str(ME): 2, str(os.getppid()): 1}


def test_who_came_while_others_were_waited_for_is_noted_and_who_did_not_come_is_not(servers):
    servers.note(**{f"p{ME}": 2})
    servers.gate.begin()
    servers.here = {os.getppid(): 1}
    servers.gate.changed()
    servers.clock.wait(restart_gate.RESTART_S + LOOK_S + SAVE_S)
    assert json.loads(servers.path.read_text()) == {str(os.getppid()): 1}


def test_a_node_that_is_left_for_good_leaves_no_note(servers):
    servers.note(**{f"p{ME}": 2})
    servers.gate.begin()
    servers.gate.close(forget=True)
    assert not servers.path.exists()


@for_each("text", ["", "{", "[]", "7", '{"x": 1}', '{"1": []}', '{"99999999999999999999": 1}', "\x00"])
def test_a_note_that_is_none_costs_nothing(tmp_path, text):
    servers = Servers(tmp_path)
    servers.path.write_text(text)
    servers.gate.begin()
    servers.clock.wait(restart_gate.RESTART_S + LOOK_S)
    assert servers.done == 1


def test_a_note_that_cannot_be_written_is_said(servers, tmp_path):
    servers.gate.begin()
    servers.path.mkdir()
    servers.gate.changed()
    servers.clock.wait(SAVE_S)
    assert "a restart may lose messages" in servers.clock.said[0]
