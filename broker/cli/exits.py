"""Exit codes of the ``headgate`` command, and which error means which: the one place that says so."""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

from broker.errors import ConfigError, HeadgateError, LinkError, LinkRefused, RpcError

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NO_CONNECTION: Final = 3
TIMEOUT: Final = 4
CONFIG: Final = 78
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141

MEANINGS: Final = (
    (OK, "done"),
    (FAILED, "the far side answered with an error"),
    (USAGE, "the command line is wrong"),
    (NO_CONNECTION, "no connection to a broker, or it was lost"),
    (TIMEOUT, "no answer in time"),
    (CONFIG, "a configuration or certificate is wrong (sysexits.h EX_CONFIG)"),
    (INTERRUPTED, "interrupted (Ctrl-C)"),
)
"""Code and meaning, as ``headgate --help`` shows them. ``headgate start`` ends with the code of its command."""

_HINT: Final = "; `headgate doctor` looks for the cause"


class UsageError(HeadgateError):
    """The words after a verb make no sense; the text says which, and what was expected."""

    errno = errno.EINVAL
    fault = "operator"


def code_of(error: BaseException) -> int:
    """The exit code for an error that ended a verb."""
    if isinstance(error, UsageError):
        return USAGE
    if isinstance(error, ConfigError):
        return CONFIG
    if isinstance(error, TimeoutError) or getattr(error, "errno", None) == errno.ETIMEDOUT:
        return TIMEOUT
    return NO_CONNECTION if isinstance(error, LinkError) else FAILED


def lines_of(error: BaseException) -> list[str]:
    """What a person should read about ``error``: one line, except that a configuration may have many faults."""
    if isinstance(error, RpcError):
        return [_rpc_line(error)]
    if isinstance(error, LinkRefused) and error.errno == errno.EPERM and str(error).startswith("local:"):
        return [f"{error}; guests are not allowed in (setting access.allow_guest_user){_HINT}"]
    if isinstance(error, LinkError):
        return [f"{error}{_HINT}"]
    return str(error).splitlines() or [type(error).__name__]


def _rpc_line(error: RpcError) -> str:
    name = errno.errorcode.get(error.errno, f"errno {error.errno}")
    text, system = str(error), os.strerror(error.errno)
    said = system if text == system else f"{text} ({system})"
    return (
        f"{error.topic}: {said} [{name} {error.errno}]" if error.topic else f"{said} [{name} {error.errno}]"
    )


def report(error: BaseException, verb: str = "") -> int:
    """Print ``error`` to stderr and return its exit code."""
    prefix = f"headgate {verb}".rstrip()
    # in one piece: several processes of an instance may share the terminal, and stderr may be unbuffered
    sys.stderr.write("".join(f"{prefix}: {line}\n" for line in lines_of(error)))
    return code_of(error)
