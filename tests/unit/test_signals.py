"""Signals that are taken one by one, by a process that may be stopped meanwhile."""

import os
import signal
import subprocess
import sys
import time

import pytest

from broker.signals import TakenSignal, take

pytestmark = pytest.mark.interpreter

LIMIT_S = 0.3
TAKES = f"""
import signal
from broker.signals import take
wanted = {{signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
print("ready", flush=True)
print(take(wanted, {LIMIT_S}), take(wanted, 0), flush=True)
"""


def stopped_beyond_its_limit(*sent: int) -> str:
    """What a process says that waits for a signal, is stopped, sent these, and goes on when its time is over."""
    with subprocess.Popen([sys.executable, "-c", TAKES], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)  # it waits
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        for number in sent:
            process.send_signal(number)
        time.sleep(LIMIT_S)
        process.send_signal(signal.SIGCONT)
        return process.stdout.read().strip()


def test_who_is_stopped_until_the_time_is_over_has_taken_nothing():
    assert stopped_beyond_its_limit() == "None None"


def test_what_came_while_it_was_stopped_is_taken():
    came = TakenSignal(signal.SIGTERM.value, 0, os.getpid())
    assert stopped_beyond_its_limit(signal.SIGTERM) == f"{came} None"


def test_a_signal_that_is_pending():
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        assert take({signal.SIGUSR1}, 0) is None
        assert take({signal.SIGUSR1}, -1.0) is None
        signal.raise_signal(signal.SIGUSR1)  # for this thread alone
        taken = take({signal.SIGUSR1}, None)
        assert (taken.number, taken.pid) == (signal.SIGUSR1, os.getpid())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def test_a_number_of_no_signal():
    with pytest.raises(OSError, match="Invalid argument"):
        take({4711}, 0)
