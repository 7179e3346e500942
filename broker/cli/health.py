"""``headgate health``: whether one process lives, or is ready, for probes of containers and people in a hurry.

One question each to a broker, a gateway, a wing. Nothing here loads typer or rich: a probe comes every few seconds,
beside the process that it asks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from broker import trust
from broker.cli import address
from broker.cli.exits import FAILED, NO_CONNECTION, OK, UsageError
from broker.cli.parsing import Parser
from broker.errors import LinkError, LinkRefused, RpcError, print_error
from broker.secret import masked

if TYPE_CHECKING:
    from http.client import HTTPConnection


Question = Literal["live", "ready"]
BODY_MAX_BYTES: Final = 65536
_ABSENT: Final = (errno.ENOENT, errno.ECONNREFUSED)


class Verdict(NamedTuple):
    """What was learnt: exit code, who was asked, what it says of itself or what is wrong."""

    code: int
    place: str
    text: str

    @property
    def healthy(self) -> bool:
        """Whether the probe succeeds."""
        return self.code == OK


# ---------------------------------------------------------------- a broker


async def ask_broker(uri: str, question: Question, timeout_s: float) -> Verdict:
    """Connect to a broker and ask it one question; whoever answers, or refuses us, lives.

    Raises:
        ConfigError: a key named by the environment is wrong.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _asked(uri, question, timeout_s)
    except TimeoutError:
        return Verdict(FAILED, uri, f"no answer within {timeout_s:g} s")


async def _asked(uri: str, question: Question, timeout_s: float) -> Verdict:
    from broker.client import connect

    options = address.link_options(uri, connect_timeout_s=timeout_s)
    try:
        async with connect(uri, options=options, retries=0) as handle:
            if question == "live":
                await handle.rpc("broker.ping", {})
                return Verdict(OK, uri, "it answers")
            state = (await handle.rpc("state-machine.get")).json().get("state", "unknown")
            return Verdict(OK if state == "run" else FAILED, uri, f"state {state}")
    except LinkRefused as error:
        return Verdict(OK if question == "live" else FAILED, uri, f"it refuses us: {error}")
    except LinkError as error:
        return Verdict(NO_CONNECTION if error.errno in _ABSENT else FAILED, uri, str(error))
    except RpcError as error:  # an answer, if not the one that was hoped for
        return Verdict(OK if question == "live" else FAILED, uri, f"it answers: {error}")


# ---------------------------------------------------------------- over HTTP


def ask_url(url: str, question: Question, timeout_s: float) -> Verdict:
    """Ask ``/livez`` or ``/readyz`` of a gateway, or of a broker's metrics listener.

    Args:
        url: ``http://HOST:PORT``, with a path if it is not the usual one, or ``unix:///PATH``.
        question: which of both.
        timeout_s: for connecting, and again for all of the answer.

    Raises:
        UsageError: another scheme, or no place in it.
    """
    import http.client

    connection, path = _connection(url, timeout_s)
    shown = masked(url)
    # who sends a byte now and then is silent for no time limit of the socket
    late = threading.Event()

    def hang_up() -> None:
        late.set()  # before what it causes, which is looked at in the other thread
        with contextlib.suppress(OSError):
            asked.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, hang_up)
    timer.daemon = True
    try:
        connection.request("GET", path or f"/{question}z")
        asked = connection.sock
        timer.start()
        answer = connection.getresponse()
        status, body = answer.status, answer.read(BODY_MAX_BYTES)
        if late.is_set():
            raise TimeoutError
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, TimeoutError) or late.is_set():
            return Verdict(FAILED, shown, f"no answer within {timeout_s:g} s")
        if not isinstance(error, OSError):
            return Verdict(FAILED, shown, f"no HTTP: {type(error).__name__}")
        absent = error.errno in _ABSENT or isinstance(error, socket.gaierror)
        return Verdict(NO_CONNECTION if absent else FAILED, shown, error.strerror or str(error))
    finally:
        timer.cancel()
        connection.close()
    return Verdict(OK if status == 200 else FAILED, shown, f"{status} {_said(body)}".rstrip())


def _connection(url: str, timeout_s: float) -> tuple[HTTPConnection, str]:
    import http.client

    class Local(http.client.HTTPConnection):
        """HTTP over a UNIX socket."""

        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(timeout_s)
            trust.connect(self.sock, parts.path)

    try:
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path and not parts.netloc:
            return Local("localhost", timeout=timeout_s), ""
        if parts.scheme == "http" and parts.hostname:
            return http.client.HTTPConnection(
                parts.hostname, parts.port or 80, timeout=timeout_s
            ), parts.path.rstrip("/")
    except ValueError as error:  # a port that is none
        raise UsageError(f"--url {masked(url)}: {error}") from None
    raise UsageError(f"--url {masked(url)}: expected http://HOST:PORT or unix:///PATH")


def _said(body: bytes) -> str:
    """What people should read of an answer: reason and status of our JSON form, else its first line."""
    try:
        told: Any = json.loads(body)
    except ValueError:
        told = None
    if isinstance(told, dict):
        text = ": ".join(str(told[key]) for key in ("status", "reason") if told.get(key))
    else:
        text = body.decode("utf-8", "replace")
    return text.partition("\n")[0][:200]


# ---------------------------------------------------------------- the wings


def ask_oslo(folder: str, timeout_s: float) -> Verdict:
    """Ask every room of a node's proxy for its figures: rooms may be processes of their own, and all must answer.

    Args:
        folder: where their control sockets are.
        timeout_s: for all of them together.
    """
    from broker.oslo.service import asking

    rooms = asking.statuses(folder, timeout_s)
    if not rooms:
        return Verdict(NO_CONNECTION, folder, "no proxy of this node")
    silent = [room for room, said in rooms.items() if said is None]
    if silent:
        return Verdict(FAILED, folder, f"no answer from {', '.join(silent)}")
    return Verdict(OK, folder, f"{', '.join(rooms)} answer")


async def ask_nfp(section: Any, question: Question, timeout_s: float) -> Verdict:
    """Open a conversation with a broker of NFP and ask for its services.

    Args:
        section: its settings, ``[nfp]``: address, and the folder with its owner's key.
        question: names the client, which must differ from that of another probe at the same time.
        timeout_s: for all of it.

    Raises:
        ConfigError: a key cannot be read.
    """
    from broker.errors import ConfigError
    from broker.nfp.client import NfpClient, RequestFailed
    from broker.nfp.peer.keys import PLAINTEXT, found_broker_key

    place = section.endpoint.replace("://*:", "://127.0.0.1:").replace("://0.0.0.0:", "://127.0.0.1:")
    server_key = (found_broker_key(section.base_dir) if section.curve else None) or PLAINTEXT
    if section.curve and not server_key:
        raise ConfigError(f"{section.base_dir}/broker.key: expected the key of the broker")
    key = f"{section.base_dir}/owner.key_secret" if server_key else None
    name = f"health-{question}-{socket.gethostname()[:64]}"
    client = NfpClient(name, broker=place, server_key=server_key, key=key, store=False)
    try:
        async with asyncio.timeout(timeout_s), client:
            await client.wait_connected()
            services = await client.services()
    except TimeoutError:
        return Verdict(FAILED, place, client.trouble or f"no answer within {timeout_s:g} s")
    except (LinkError, RequestFailed) as error:
        return Verdict(FAILED, place, str(error))
    return Verdict(OK, place, f"it answers, {len(services)} services")


TIMEOUT_S: Final = 2.0

_EPILOG: Final = """\
Examples:
  headgate health                                      has the broker of this machine joined its tree?
  headgate health --live --uri local:///run/headgate/local-0
  headgate health --url http://127.0.0.1:8280          a gateway, by its /readyz
  headgate health --url unix:///run/headgate/metrics --json
  headgate health --nfp nfp.toml                       a broker of NFP, found by its configuration
  headgate health --oslo                               the oslo proxy of this node

Live: it answers, whatever its peers do. Ready: a broker's state is run, a gateway has its broker; a broker of NFP and
the rooms of an oslo proxy answer, which is the same for both questions.
Exit codes: 0 healthy, 1 not (stderr says why), 2 wrong options, 3 nobody is there, 78 a key or file is wrong;
over ZeroMQ (tcp:, ipc:, --nfp) a place where nobody is gives 1: it is tried until the time is over
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "health",
        "Ask one process whether it is well.",
        _EPILOG,
    )
    question = parser.add_mutually_exclusive_group()
    question.add_argument("--live", action="store_true", help="Whether it answers at all.")
    question.add_argument(
        "--ready", action="store_true", help="Whether it has joined what it belongs to (default)."
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "-u",
        "--uri",
        metavar="URI",
        help="A broker (default: $HEADGATE_URI, $FLUX_URI, or the local socket).",
    )
    who.add_argument(
        "--url",
        metavar="URL",
        help="A gateway, or a broker's metrics_listen: http://HOST:PORT, unix:///PATH.",
    )
    who.add_argument(
        "--nfp", nargs="?", const="", metavar="FILE", help="A broker of NFP, with [nfp] of FILE or defaults."
    )
    who.add_argument(
        "--oslo", nargs="?", const="", metavar="FILE", help="An oslo proxy, with [oslo] of FILE or defaults."
    )
    parser.add_argument("--json", action="store_true", help="Print the verdict as one JSON object.")
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"Patience (default {TIMEOUT_S:g}).",
    )
    return parser


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    given = arguments().parse_args(argv)
    if not 0 < given.timeout <= 3600:
        raise UsageError(f"--timeout {given.timeout:g}: expected more than 0, at most 3600")
    logging.getLogger("headgate").addHandler(logging.NullHandler())  # what it would say is in the verdict
    question: Question = "live" if given.live else "ready"
    verdict = _ask(given, question)
    _tell(verdict, question, as_json=given.json)
    return verdict.code


def _ask(given: argparse.Namespace, question: Question) -> Verdict:
    if given.url is not None:
        return ask_url(given.url, question, given.timeout)
    if given.nfp is not None:
        from broker.settings import NfpSection, load_wing

        section = load_wing(NfpSection, given.nfp or None)
        return asyncio.run(ask_nfp(section, question, given.timeout))
    if given.oslo is not None:
        return ask_oslo(_ipc_dir(given.oslo), given.timeout)
    return asyncio.run(ask_broker(address.choose(given.uri), question, given.timeout))


def _ipc_dir(file: str) -> str:
    """The folder of a node's sockets, by the settings in ``file``."""
    from broker.oslo.node import client_ipc_dir

    if not file:
        return client_ipc_dir()
    from broker.settings import OsloSection, load_wing

    folder = load_wing(OsloSection, file).ipc_dir
    return os.path.abspath(folder) if folder else client_ipc_dir()


def _tell(verdict: Verdict, question: Question, *, as_json: bool) -> None:
    if as_json:
        told = {"probe": question, "healthy": verdict.healthy, "at": verdict.place, "text": verdict.text}
        print(json.dumps(told))
    elif verdict.healthy:
        print(f"{question}: {verdict.text} ({verdict.place})")
    else:
        print_error(f"headgate health: not {question}: {verdict.text} ({verdict.place})")
