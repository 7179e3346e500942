"""What the verbs that send and listen have in common: options, values on the command line, the way to an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from broker.cli import options
from broker.cli.content import keywords, object_of
from broker.cli.exits import FAILED, NO_CONNECTION, OK, TIMEOUT, Failed, UsageError
from broker.cli.screen import Screen
from broker.nesting import NESTED_MAX, check
from broker.oslo.contract import Address, CallTimeout, OsloFailure, Settings, Undelivered, Unroutable
from broker.oslo.frames import check_name
from broker.oslo.names import DEFAULT_EXCHANGE, DIRECTORY_SOCKET
from broker.oslo.node import MISSING, client_ipc_dir, obstacle
from broker.schemes import check_port
from broker.secret import masked
from broker.settings.values import check_key

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

CALL_S: Final = 60.0
"""Default of ``--timeout``: that of ``rpc_response_timeout``."""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE ...]", help="Arguments; a value is JSON where it is some, else a text."
    ),
]
Exchange = Annotated[
    str, typer.Option("--exchange", "-x", metavar="NAME", help="The exchange (control_exchange).")
]
Context = Annotated[str, typer.Option("--ctxt", metavar="JSON", help="The request's context, a JSON object.")]


def _option(kind: Any, flag: str, metavar: str, text: str) -> Any:
    return Annotated[kind, typer.Option(flag, metavar=metavar, help=text)]


def _argument(metavar: str, text: str) -> Any:
    return Annotated[str, typer.Argument(metavar=metavar, help=text, show_default=False)]


Options = Mapping[str, tuple[Any, Any]]
"""Name -> option and default, see ``options.with_shared``."""
PLACES: Final[Options] = {
    "ipc_dir": (
        _option(
            str | None,
            "--ipc-dir",
            "DIR",
            "Folder of this node's proxy. Default: where `oslo proxy` puts it.",
        ),
        None,
    ),
    "directory": (
        _option(
            list[str] | None,
            "--directory",
            "URL",
            "tcp://HOST:PORT of a directory, where no proxy runs on this machine; may be given again.",
        ),
        None,
    ),
    "directory_key": (
        _option(str, "--directory-key", "KEY", "Its CURVE public key. Default: that of our certificate."),
        "",
    ),
    "curve_cert": (
        _option(
            str,
            "--curve-cert",
            "FILE",
            "Our CURVE certificate. A node with CURVE lets in those alone that it lists, and its own.",
        ),
        "",
    ),
    "as_json": (options.AsJson, False),
}
"""What ``Sender`` is made of: of every verb."""
TO_ALL: Final[Options] = {
    "topic": (_argument("TOPIC", "Where servers listen."), Parameter.empty),
    "method": (_argument("METHOD", "What they are to do."), Parameter.empty),
    "words": (Words, None),
    "exchange": (Exchange, DEFAULT_EXCHANGE),
    "namespace": (_option(str | None, "--namespace", "NAME", "Namespace of the method."), None),
    "version": (_option(str | None, "--version", "X.Y", "Version that the server has to have."), None),
    "ctxt": (Context, "{}"),
}
"""Of a verb that sends a request to all servers of a topic."""
TO_ONE: Final[Options] = {
    **TO_ALL,
    "server": (_option(str, "--server", "NAME", "This server of the topic, not any."), ""),
}
"""Of one that sends it to one of them."""

Work = Callable[["ClientSession"], int | None]


class Sender:
    """One verb's way to the pipelines.

    Attributes:
        screen: where it prints.
    """

    def __init__(
        self,
        verb: str,
        ipc_dir: str | None,
        directory: list[str] | None,
        directory_key: str,
        curve_cert: str,
        as_json: bool,
    ) -> None:
        self.verb = f"oslo {verb}"
        self.screen = Screen(as_json)
        self._settings = Settings(
            ipc_dir=os.path.abspath(ipc_dir) if ipc_dir else client_ipc_dir(),
            directories=tuple(directory or ()),
            directory_key=directory_key,
            curve_cert=curve_cert,
        )

    def places(self) -> Settings:
        """How the pipelines are found, looked at before anything is opened: later it would be an error of a thread.

        Raises:
            UsageError: a directory cannot be an address, or its key no key. ConfigError: the certificate is none.
        """
        settings = self._settings
        for url in settings.directories:
            expected = "tcp://HOST:PORT" if url.endswith(":*") else check_port(url, "tcp")
            if expected:
                raise UsageError(f"--directory {masked(url)[:64]!r}: expected {expected}")
        if settings.directory_key and any(check_key((), settings.directory_key)):
            raise UsageError(
                f"--directory-key {settings.directory_key[:64]!r}: expected 40 characters of Z85"
            )
        if settings.curve_cert:
            from broker.transport import curve

            curve.load(settings.curve_cert)
        return settings

    def settings(self) -> Settings:
        """As ``places``, of a verb that sends or listens.

        Raises:
            UsageError, ConfigError: see there, or there is neither a proxy in the folder nor a directory.
        """
        settings = self.places()
        path = os.path.join(settings.ipc_dir, DIRECTORY_SOCKET)
        if not settings.directories and (why := obstacle(path)):
            if why != MISSING:
                raise UsageError(f"the proxy of this node: {path}{why}")
            raise UsageError(
                f"no proxy of this node in {settings.ipc_dir}; `headgate oslo proxy` starts one, --ipc-dir names "
                "another folder, --directory a directory elsewhere"
            )
        return settings

    def run(self, work: Work) -> int:
        """Open a session, do ``work``, close it; returns the exit code that ``work`` returned, or 0.

        Raises:
            UsageError, ConfigError: see ``settings``. Failed: the pipelines refuse it: exit code 1, 3 (nobody there) or
                4 (no answer in time).
        """
        from broker.oslo.client import open_session

        settings = self.settings()
        logging.getLogger("headgate").addHandler(logging.StreamHandler(sys.stderr))
        logging.getLogger("headgate").setLevel(logging.WARNING)
        logging.getLogger("headgate").propagate = False
        try:
            session = open_session(settings)
            try:
                return work(session) or OK
            finally:
                session.close()
        except OsloFailure as error:
            if isinstance(error, (Unroutable, Undelivered)):
                code = NO_CONNECTION
            else:
                code = TIMEOUT if isinstance(error, CallTimeout) else FAILED
            raise Failed(str(error), code, verb=self.verb) from error

    def send(self, pipelines: Iterable[str], address: Address, work: Work) -> int:
        """``run`` for what is not answered: says whether it was sent, or that nobody listens there (exit code 3)."""
        from broker.oslo.service.asking import states

        wanted = frozenset(pipelines)
        known = states(self.settings())
        if known is not None and not any(
            state.pipeline in wanted
            and (record.exchange, record.topic) == address[:2]
            and address.server in ("", record.server)
            for state in known
            for record in state.records
        ):
            raise Failed(f"{address}: nobody listens there", NO_CONNECTION, verb=self.verb)
        code = self.run(work)
        if code == OK:
            self.screen.record({"sent": True}, f"sent to {address}")
        return code


def command(verb: str, request: Options | None = None) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a command of ``def work(sender, ...)``, or with ``request``, ``TO_ALL`` or ``TO_ONE``, of ``def work(sender,
    address, body, ...)``. To its other parameters, the options of the command, those of ``PLACES`` and ``request`` are
    added; its docstring is the help.
    """

    def made(work: Callable[..., int]) -> Callable[..., int]:
        def run(**given: Any) -> int:
            sender = Sender(verb, **{name: given.pop(name) for name in PLACES})
            if request is None:
                return work(sender, **given)
            asked = {name: given.pop(name) for name in request}
            where = Address(
                named(asked["exchange"], "exchange"),
                topic_named(asked["topic"]),
                named(asked.get("server", ""), "server"),
            )
            body = request_of(*(asked[name] for name in ("method", "words", "ctxt", "namespace", "version")))
            return work(sender, where, body, **given)

        return options.with_shared(run, work, 1 if request is None else 3, {**(request or {}), **PLACES})

    return made


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


def request_of(
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
