"""Exit codes of the ``headgate`` command, and which error means which: the one place that says so."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from typing import Final

from broker import endings
from broker.errors import ConfigError, HeadgateError, LinkError, LinkRefused, RpcError, print_error
from broker.safe_text import one_line

OK: Final = endings.OK
FAILED: Final = endings.FAILED
USAGE: Final = endings.USAGE
NO_CONNECTION: Final = 3
TIMEOUT: Final = 4
TEMPFAIL: Final = endings.TEMPFAIL
CONFIG: Final = endings.CONFIG
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141

MEANINGS: Final = (
    (OK, "done"),
    (FAILED, "the far side answered with an error"),
    (USAGE, "the command line is wrong"),
    (NO_CONNECTION, "no connection to a broker, or it was lost"),
    (TIMEOUT, "no answer in time"),
    (TEMPFAIL, "something is not there yet, or in the way: start again (sysexits.h EX_TEMPFAIL)"),
    (CONFIG, "a configuration or certificate is wrong (sysexits.h EX_CONFIG)"),
    (INTERRUPTED, "interrupted (Ctrl-C)"),
    (PIPE_CLOSED, "whoever read the output has gone"),
)
"""Code and meaning, as ``headgate --help`` shows them. ``headgate start`` ends with the code of its command."""

GUESTS: Final = (
    "guests are let in by access.allow_guest_user = true, root as the owner by access.allow_root_owner, nobody and "
    "users whom its user namespace does not map by access.allow_overflow_uid, too; its log says which it was"
)
"""Why a local broker may have refused a user: only an error number comes over the wire."""
_WORDS: Final = {errno.EPROTO: "the payload lacks a key, has one of another type, or the method streams"}
"""What errors mean that a broker answers without a text."""
_HINT: Final = "; `headgate doctor` looks for the cause"


class UsageError(HeadgateError):
    """The words after a verb make no sense; the text says which, and what was expected."""

    errno = errno.EINVAL
    fault = "operator"


class Failed(HeadgateError):
    """A verb could not do what it is for.

    Attributes:
        exit_code: of the command.
        verb: all its words, "" for those that ``main`` knows.
        advice: lines on what to do.
    """

    def __init__(
        self, text: str, exit_code: int = FAILED, *, verb: str = "", advice: Iterable[str] = ()
    ) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.verb = verb
        self.advice = tuple(advice)


def error_name(number: int) -> str:
    """``EPERM`` for 1; ``errno 255`` for a number without a name."""
    return errno.errorcode.get(number, f"errno {number}")


def code_of(error: BaseException) -> int:
    """The exit code for an error that ended a verb."""
    if isinstance(error, Failed):
        return error.exit_code
    if isinstance(error, UsageError):
        return USAGE
    if isinstance(error, ConfigError):
        return endings.code_of(error)
    if isinstance(error, TimeoutError) or getattr(error, "errno", None) == errno.ETIMEDOUT:
        return TIMEOUT
    return NO_CONNECTION if isinstance(error, LinkError) else FAILED


def lines_of(error: BaseException) -> list[str]:
    """What a person should read about ``error``: one line, except that a configuration may have many faults."""
    if isinstance(error, RpcError):
        return ["\n".join(map(one_line, _rpc_line(error).splitlines()))]  # its text is a peer's
    if isinstance(error, LinkRefused) and error.errno == errno.EPERM and str(error).startswith("local:"):
        return [f"{error}; {GUESTS}{_HINT}"]
    if isinstance(error, LinkError):
        return [f"{error}{_HINT}"]
    return str(error).splitlines() or [type(error).__name__]


def _rpc_line(error: RpcError) -> str:
    name = error_name(error.errno)
    text, system = str(error), os.strerror(error.errno)
    if text == system:  # deployed brokers, and so ours, say no more than the number
        text = _WORDS.get(error.errno, text)
    said = system if text == system else f"{text} ({system})"
    return (
        f"{error.topic}: {said} [{name} {error.errno}]" if error.topic else f"{said} [{name} {error.errno}]"
    )


def report(error: BaseException, verb: str = "", *, as_json: bool = False, program: str = "headgate") -> int:
    """Print ``error`` to stderr, as one JSON object or for people, and return its exit code."""
    code = code_of(error)
    verb, advice = (error.verb or verb, error.advice) if isinstance(error, Failed) else (verb, ())
    if as_json:
        told: dict[str, object] = {"error": "\n".join(lines_of(error)), "exit_code": code}
        number = getattr(error.__cause__ if isinstance(error, Failed) else error, "errno", None)
        if number:
            told |= {"errno": number, "name": errno.errorcode.get(number, "")}
        if isinstance(error, RpcError):
            told |= {"error": str(error), "topic": error.topic}
        if advice:
            told["advice"] = " ".join(advice)
        lines = [json.dumps(told, ensure_ascii=False)]
    else:
        lines = [f"{f'{program} {verb}'.rstrip()}: {line}" for line in lines_of(error)]
        lines += [f"  {line}" for line in advice]
    # in one piece: several processes of an instance may share the terminal, and stderr may be unbuffered
    print_error("\n".join(lines))
    return code
