"""A connection breaks that took half a message, while its socket is closed or unbound: libzmq 4.3.5 would abort.

Who may be aborted is a process of its own.
"""

import subprocess
import sys

import pytest

ROUNDS = 60
"""Before connections had to be gone first, one of the first twenty or so ended the process."""


@pytest.mark.patient
@pytest.mark.parametrize("side", ["listener", "dialer"])
def test_both_sides_end_connections_that_took_half_a_message(side):
    command = [sys.executable, "-m", "tests.unit.transport.cut_connections", side, str(ROUNDS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
