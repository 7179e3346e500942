"""Children that go on without exec; in a process of their own, which has no threads."""

import subprocess
import sys
import time

BEGIN = """
import os, signal, sys, time
from broker.children.forked import Forked, until_ready
def serve(ready):
    ready()
    while True: signal.pause()
"""


def told(code):
    """What such a process prints, and what it and its children say on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=40, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_all_are_ready_and_leave():
    code = """
both = [Forked("a", serve), Forked("b", serve)]
print(until_ready(both, 20), [child.ready for child in both], os.getsid(both[0].pid) == both[0].pid)
for child in both:
    child.send_signal(signal.SIGTERM)
    child.reap(0)
    child.send_signal(signal.SIGTERM)  # harmless
print([child.why for child in both])
"""
    ended = "ended with signal 15 (SIGTERM)"
    assert told(code) == (["True [True, True] True", str([ended, ended])], "")


def test_one_that_dies_before_it_is_ready_is_known_at_once():
    code = """
def fails(ready):
    print("to stderr")
    raise ValueError("no such thing")
both = [Forked("a", serve), Forked("headgate: b", fails)]
print(until_ready(both, 20), both[1].code, both[1].why)
"""
    out, err = told(code)
    assert out == ["False 1 ended with code 1"]
    assert err == "to stderr\nheadgate: b: ValueError: no such thing\n"


def test_one_that_is_not_ready_in_time():
    code = """
child = Forked("a", lambda ready: time.sleep(60))
print(until_ready([child], 0.1), child.reap(), repr(child.why))
"""
    assert told(code)[0] == ["False False ''"]


def test_it_ends_with_its_parent():
    code = """
def middle(ready):
    child = Forked("b", serve)
    until_ready([child], 20)
    print(child.pid)
    ready()
    while True: signal.pause()
first = Forked("a", middle)
until_ready([first], 20)
first.send_signal(signal.SIGKILL)
"""
    pid = int(told(code)[1])  # what children print goes where errors go
    end = time.monotonic() + 40
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_one_whose_words_nobody_reads_ends_all_the_same():
    """And does not go on with what its parent has to do, such as ending the other children."""
    code = """
def prints(ready):
    end, broken = os.pipe()
    os.close(end)
    sys.stdout = open(broken, "w")
    print("a word")
    return 3
child = Forked("a", prints)
child.reap(0)
print(child.code)
"""
    assert told(code) == (["3"], "")


def alive(pid):
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_who_is_to_leave_at_once_hears_both_signals():
    code = """
from broker.children.forked import end
def slow(ready):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    ready()
    for _ in range(2):
        while signal.SIGTERM not in signal.sigpending():
            time.sleep(0.02)
        signal.sigwait({signal.SIGTERM})
    return 7
child = Forked("a", slow)
print(until_ready([child], 20))
end([child], 0.0)
print(child.why)
"""
    assert told(code)[0] == ["True", "ended with code 7"]
