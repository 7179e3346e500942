"""From a command line to a writer at work, or to a report that says why there is none.

Loads numpy only when descriptor and options are read, so that its absence can be reported as well.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import select
import signal
import socket
from typing import Final

import msgspec

from broker import interpreter, loglines
from broker.errors import ConfigError
from broker.extras import install
from broker.journal.marks import OFF, REPORT
from broker.journal.options import JournalOptions
from broker.journal.premises import Lock
from broker.secret import convert_secret

log = logging.getLogger("headgate")

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
RANK_MAX: Final = 0xFFFFFFFF
LOCK_PATIENCE_S: Final = 2.0
"""A writer whose broker has died may still be writing its last block when the next one comes."""
OFF_PATIENCE_S: Final = 1.0
"""How long the last report waits for room in the socket."""
NO_SOCKET: Final = 2
"""Exit code when not even the socket is there."""


def main(arguments: list[str]) -> int:
    """Write until the other end of the socket is closed.

    Args:
        arguments: number of the inherited socket; number of the lock file, if that is inherited, too. The input is the
            options as JSON.

    Returns:
        exit code: 0 when all was written; 1 after a report OFF; 2 without a socket to report to.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the broker: its end is ours
    os.umask(0o077)
    loglines.send_to_stderr(log, "journal", logging.INFO)
    try:
        fd, *locked = map(int, [arguments[0], *arguments[1:2]])
        _close_all_but(fd, *locked)
        sock = socket.socket(fileno=fd)
    except (IndexError, ValueError, OSError) as error:
        log.error(
            "journal: usage: python -m broker.journal.writer FD [LOCK_FD], options on the input: %s", error
        )
        return NO_SOCKET
    with sock:
        try:
            options = read_options(interpreter.ordered())
            loglines.send_to_stderr(log, str(options.rank), options.log_level)
            with contextlib.closing(Lock(options, LOCK_PATIENCE_S, *locked)) as lock:
                return _serve(sock, options, lock.fd)
        except ConfigError as error:
            log.error("%s", error)
            report_off(sock, error.errno)
        except OSError as error:
            log.error("journal: %s", error)
            report_off(sock, error.errno or errno.EIO)
        except Exception as error:  # a bug, or no memory: capture ends, and it says so
            log.exception("journal: the writer failed")
            report_off(sock, errno.ENOMEM if isinstance(error, MemoryError) else errno.ENOTRECOVERABLE)
    return 1


def _close_all_but(*wanted: int) -> None:
    """Whatever else was inherited by accident is closed: it would be held open as long as the writer lives."""
    if min(wanted) < 3:
        raise ValueError(f"descriptors {wanted}, expected those above 2")
    for other in map(int, os.listdir("/proc/self/fd")):
        if other > 2 and other not in wanted:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(other)


def read_options(text: bytes) -> JournalOptions:
    """The options that a writer is told; a run without a uuid gets one.

    Raises:
        ConfigError: no JSON, or values that no segment can hold.
    """
    try:
        options = msgspec.json.decode(text, type=JournalOptions, dec_hook=convert_secret)
        run = options.run or os.urandom(16).hex()
        if len(bytes.fromhex(run)) != 16:
            raise ValueError(f"run {run[:64]!r}, expected 32 hex digits")
    except ValueError as error:  # of msgspec as well
        raise ConfigError(f"journal: options: {error}") from None
    if not NAME.fullmatch(options.writer):
        raise ConfigError(
            f"journal: writer {options.writer[:64]!r}, expected letters, digits, '_', '.', '-', at most 64"
        )
    if not 0 <= options.rank <= RANK_MAX:
        raise ConfigError(f"journal: rank {options.rank}, expected 0 to {RANK_MAX}")
    return msgspec.structs.replace(options, run=run.lower())


def _serve(sock: socket.socket, options: JournalOptions, lock_fd: int) -> int:
    try:
        from broker.journal.writer.process import Writer
    except ImportError as missing:
        text = f"journal: {missing.name} is not installed: {install('journal')}"
        raise ConfigError(text, errno.ENOPKG) from None
    return Writer(sock, options, lock_fd).run()


def report_off(sock: socket.socket, number: int, records: int = 0, size: int = 0) -> None:
    """Say that capture has ended, and why; a broker that is gone need not hear it."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    poll.poll(OFF_PATIENCE_S * 1000)
    with contextlib.suppress(OSError):
        sock.send(REPORT.pack(OFF, number, records, size), socket.MSG_DONTWAIT)
