"""What may pass by itself, and what a person has to change."""

import errno
import os
import socket
import sqlite3

from broker.endings import CONFIG, FAILED, TEMPFAIL, code_of
from broker.errors import HeadgateError
from broker.obstacles import obstacle
from tests.tables import for_each


def of_sqlite(name: str) -> sqlite3.Error:
    error = sqlite3.OperationalError("said so")
    error.sqlite_errorname = name
    return error


@for_each(
    ("error", "absent", "code"),
    [
        (OSError(errno.EADDRNOTAVAIL, "x"), False, TEMPFAIL),
        (OSError(errno.EADDRINUSE, "x"), False, TEMPFAIL),
        (OSError(errno.ENOSPC, "x"), False, TEMPFAIL),
        (OSError(errno.EMFILE, "x"), False, TEMPFAIL),
        (socket.gaierror(socket.EAI_AGAIN, "x"), False, TEMPFAIL),
        (socket.gaierror(socket.EAI_NONAME, "x"), False, TEMPFAIL),
        (of_sqlite("SQLITE_FULL"), False, TEMPFAIL),
        (of_sqlite("SQLITE_BUSY_SNAPSHOT"), False, TEMPFAIL),
        (errno.EBUSY, False, TEMPFAIL),
        (FileNotFoundError(errno.ENOENT, "x"), True, TEMPFAIL),
        (FileNotFoundError(errno.ENOENT, "x"), False, CONFIG),
        (PermissionError(errno.EACCES, "x"), True, CONFIG),
        (of_sqlite("SQLITE_CORRUPT"), False, CONFIG),
        (ValueError("x"), True, CONFIG),
    ],
)
def test_what_passes_by_itself(error, absent, code):
    assert code_of(obstacle("said", error, absent=absent)) == code


def test_other_errors_are_failures():
    assert code_of(HeadgateError("x")) == FAILED


def test_who_listens_is_named_and_a_file_in_the_way_is_for_a_person(rundir):
    with socket.socket() as port, socket.socket(socket.AF_UNIX) as local:
        port.bind(("127.0.0.1", 0))
        port.listen()
        local.bind(str(rundir / "s"))
        local.listen()
        by_port = obstacle("taken", errno.EADDRINUSE, port=port.getsockname()[1])
        by_path = obstacle("taken", errno.EADDRINUSE, path=str(rundir / "s"))
    assert str(by_port) == str(by_path) == "taken, by this very process"
    (rundir / "file").write_text("")
    in_the_way = obstacle("taken", errno.EADDRINUSE, path=os.fspath(rundir / "file"))
    assert (str(in_the_way), code_of(in_the_way)) == ("taken", CONFIG)
