"""What the verbs that send and listen have in common: options, values on the command line, the way to an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from broker.cli.content import keywords, object_of
from broker.cli.exits import FAILED, NO_CONNECTION, OK, TIMEOUT, Failed, UsageError
from broker.cli.screen import Screen
from broker.nesting import NESTED_MAX, check
from broker.oslo.contract import Address, CallTimeout, OsloFailure, Settings, Undelivered, Unroutable
from broker.oslo.frames import check_name
from broker.oslo.names import DIRECTORY_SOCKET
from broker.oslo.node import MISSING, client_ipc_dir, obstacle
from broker.schemes import check_port
from broker.secret import masked
from broker.settings.values import check_key

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

CALL_S: Final = 60.0
"""Default of ``--timeout``: that of ``rpc_response_timeout``."""

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Where servers listen.", show_default=False)]
Method = Annotated[str, typer.Argument(metavar="METHOD", help="What they are to do.", show_default=False)]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE ...]", help="Arguments; a value is JSON where it is some, else a text."
    ),
]
Exchange = Annotated[
    str, typer.Option("--exchange", "-x", metavar="NAME", help="The exchange (control_exchange).")
]
Server = Annotated[str, typer.Option("--server", metavar="NAME", help="This server of the topic, not any.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Namespace of the method.")
]
Version = Annotated[
    str | None, typer.Option("--version", metavar="X.Y", help="Version that the server has to have.")
]
Context = Annotated[str, typer.Option("--ctxt", metavar="JSON", help="The request's context, a JSON object.")]
IpcDir = Annotated[
    str | None,
    typer.Option(
        "--ipc-dir", metavar="DIR", help="Folder of this node's proxy. Default: where `oslo proxy` puts it."
    ),
]
Directory = Annotated[
    list[str] | None,
    typer.Option(
        "--directory",
        metavar="URL",
        help="tcp://HOST:PORT of a directory, where no proxy runs on this machine; may be given again.",
    ),
]
DirectoryKey = Annotated[
    str,
    typer.Option(
        "--directory-key", metavar="KEY", help="Its CURVE public key. Default: that of our certificate."
    ),
]
CurveCert = Annotated[
    str,
    typer.Option(
        "--curve-cert",
        metavar="FILE",
        help="Our CURVE certificate. A node with CURVE lets in those alone that it lists, and its own.",
    ),
]

Work = Callable[["ClientSession"], int | None]


def client_settings(
    ipc_dir: str | None, directories: list[str] | None, key: str, certificate: str
) -> Settings:
    """How the pipelines are found.

    Raises:
        UsageError: there is neither a proxy in the folder nor a directory, or one cannot be an address, or the key
            no key. ConfigError: the certificate is none.
    """
    check_places(directories, key, certificate)
    folder = os.path.abspath(ipc_dir) if ipc_dir else client_ipc_dir()
    path = os.path.join(folder, DIRECTORY_SOCKET)
    if not directories and (why := obstacle(path)):
        if why != MISSING:
            raise UsageError(f"the proxy of this node: {path}{why}")
        raise UsageError(
            f"no proxy of this node in {folder}; `headgate oslo proxy` starts one, --ipc-dir names another folder, "
            "--directory a directory elsewhere"
        )
    return Settings(
        ipc_dir=folder, directories=tuple(directories or ()), directory_key=key, curve_cert=certificate
    )


def check_places(directories: list[str] | None, key: str, certificate: str) -> None:
    """Look at what is given before anything is opened: later it would be an error of a thread.

    Raises:
        UsageError, ConfigError: as of ``client_settings``.
    """
    for url in directories or ():
        _check_directory(url)
    if key and any(check_key((), key)):
        raise UsageError(f"--directory-key {key[:64]!r}: expected 40 characters of Z85")
    if certificate:
        from broker.transport import curve

        curve.load(certificate)


def _check_directory(url: str) -> None:
    expected = "tcp://HOST:PORT" if url.endswith(":*") else check_port(url, "tcp")
    if expected:
        raise UsageError(f"--directory {masked(url)[:64]!r}: expected {expected}")


def run(verb: str, settings: Settings, work: Work) -> int:
    """Open a port, do ``work``, close it; returns the exit code that ``work`` returned, or 0.

    Raises:
        Failed: the pipelines refuse it: exit code 1, 3 (nobody there) or 4 (no answer in time).
    """
    from broker.oslo.client import open_session

    logging.getLogger("headgate").addHandler(logging.StreamHandler(sys.stderr))
    logging.getLogger("headgate").setLevel(logging.WARNING)
    logging.getLogger("headgate").propagate = False
    try:
        port = open_session(settings)
        try:
            return work(port) or 0
        finally:
            port.close()
    except OsloFailure as error:
        if isinstance(error, (Unroutable, Undelivered)):
            code = NO_CONNECTION
        else:
            code = TIMEOUT if isinstance(error, CallTimeout) else FAILED
        raise Failed(str(error), code, verb=f"oslo {verb}") from error


def heard(settings: Settings, pipelines: Iterable[str], address: Address) -> bool:
    """Whether somebody listens there, as far as the directory knows; True when none answers."""
    from broker.oslo.service.asking import states

    known = states(settings)
    if known is None:
        return True
    wanted = set(pipelines)
    return any(
        (record.exchange, record.topic) == address[:2] and address.server in ("", record.server)
        for state in known
        if state.pipeline in wanted
        for record in state.records
    )


def send(
    verb: str, settings: Settings, pipelines: Iterable[str], address: Address, work: Work, as_json: bool
) -> int:
    """``run`` for what is not answered: says whether it was sent, or that nobody listens there (exit code 3)."""
    if not heard(settings, pipelines, address):
        raise Failed(f"{address}: nobody listens there", NO_CONNECTION, verb=f"oslo {verb}")
    code = run(verb, settings, work)
    if code == OK:
        Screen(as_json).record({"sent": True}, f"sent to {address}")
    return code


def named(text: str, what: str) -> str:
    """``text`` itself, when it can be the name of an exchange, topic, server or pool.

    Raises:
        UsageError: it cannot.
    """
    try:
        return check_name(text, what)
    except ValueError as error:
        raise UsageError(str(error)) from None


def topic_named(text: str) -> str:
    """As ``named``, of a topic: there has to be one."""
    if not text:
        raise UsageError("TOPIC: saw none, expected where servers listen")
    return named(text, "topic")


def request(
    method: str, words: Iterable[str] | None, context: str, namespace: str | None, version: str | None
) -> bytes:
    """The body of a call, cast or fan-out, as oslo.messaging has it.

    Raises:
        UsageError: as of ``keywords``, ``object_of`` and ``encoded``.
    """
    message: dict[str, Any] = {"method": method, "args": keywords(words or ())}
    if namespace is not None:
        message["namespace"] = namespace
    if version is not None:
        message["version"] = version
    return encoded({"ctxt": object_of(context, "--ctxt"), "message": message})


def encoded(value: Any) -> bytes:
    """What words of the command line became, as JSON.

    Raises:
        UsageError: a word is not UTF-8, or nested too deeply.
    """
    try:
        text = msgspec.json.encode(value)
        check(text)
    except UnicodeEncodeError:
        raise UsageError("saw a word that is not UTF-8, expected text or JSON") from None
    except (RecursionError, msgspec.DecodeError):
        raise UsageError(
            f"saw JSON that is nested too deeply, expected {NESTED_MAX} levels at most"
        ) from None
    return text
