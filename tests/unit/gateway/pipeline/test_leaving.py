"""A verb that a signal ends: whatever its main thread is just doing, also at the first steps of a wait."""

import signal
import sys

from gateway.cli.pipeline import shared_options
from tests.tables import for_each


@for_each("step", range(24))
def test_a_signal_at_any_step_of_a_wait_ends_it(step):
    steps, before = iter(range(step)), sys.gettrace()

    def trace(_frame, _event, _arg):
        if next(steps, None) is None:
            sys.settrace(None)
            signal.raise_signal(signal.SIGTERM)
            return None
        return trace

    with shared_options.leaving() as leave:
        sys.settrace(trace)
        try:
            for _ in range(100):
                if leave.wait(0.01):
                    break
        finally:
            sys.settrace(before)
        assert leave.is_set()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_nobody_said_so():
    with shared_options.leaving() as leave:
        assert not leave.wait(0.001)
        assert not leave.is_set()
