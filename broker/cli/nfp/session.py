"""What the client verbs of NFP share: options for the connection, and its life from connecting to an exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from inspect import iscoroutinefunction
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import msgspec
import typer

from broker.cli import options
from broker.cli.exits import NO_CONNECTION, OK, Failed, UsageError
from broker.cli.screen import Screen
from broker.errors import LinkBroken, LinkError
from broker.nfp.client import NfpClient
from broker.nfp.client.job import Limits
from broker.nfp.peer.brokers import DEFAULT, choose_brokers
from broker.nfp.peer.keys import PLAINTEXT, broker_key, default_base_dir, found_broker_key, own_certificate

if TYPE_CHECKING:
    from broker.transport.curve import Certificate

CONNECT_S: Final = 4.0
"""How long each broker may take to be reached, unless a verb's ``--timeout`` is shorter: it may be just starting."""
ANSWER_S: Final = 10.0
"""How long it may take to answer a question."""
FAILOVER_S: Final = 3.0
"""A person waits: the next broker is tried sooner than by a program."""
OWNER_FILE: Final = "owner.key_secret"
"""The certificate that our broker makes for its owner, in its folder."""
CLI: Final = "cli"
"""The name of the key pair that the command line makes for itself elsewhere."""

Brokers = Annotated[
    list[str] | None,
    typer.Option(
        "--broker",
        "-b",
        metavar="E",
        help=f"The broker: tcp://HOST:PORT or ipc://PATH; given again: further ones, used in order. Default: "
        f"$HEADGATE_NFP (several with blanks), or {DEFAULT}.",
    ),
]
ServerKey = Annotated[
    str | None,
    typer.Option(
        "--server-key",
        metavar="KEY",
        help="The broker's public key: Z85, or its .key file. Default: that of the broker in the base directory.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key-secret",
        "--key",
        metavar="FILE",
        help="Our CURVE certificate. Default: the owner's in the base directory, else one made there.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        "-n",
        metavar="NAME",
        help="Our name at the broker; jobs submitted under it are kept in the base directory. Default: a new one "
        "each time.",
    ),
]
BaseDir = Annotated[
    str | None,
    typer.Option(
        "--base-dir",
        metavar="DIR",
        help="Folder of keys. Default: $HEADGATE_NFP_DIR, or ~/.local/state/headgate/nfp.",
    ),
]
Plain = Annotated[
    bool,
    typer.Option(
        "--no-curve", help="Speak plaintext, although there is a broker's key in the base directory."
    ),
]
NoStore = Annotated[bool, typer.Option("--no-store", help="Keep no jobs of --name in the base directory.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow plaintext to another machine.")]

Work = Callable[..., Awaitable[int | None]]


class NfpSession:
    """One verb's connection to a broker.

    Attributes:
        screen: where the verb prints.
        base_dir: folder of keys.
    """

    def __init__(
        self,
        verb: str,
        brokers: list[str] | None,
        server_key: str | None,
        key: str | None,
        name: str | None,
        base_dir: str | None,
        plain: bool,
        insecure: bool,
        as_json: bool,
        no_store: bool = True,
    ) -> None:
        self.verb = verb
        self.screen = Screen(as_json)
        self.base_dir = folder(base_dir)
        self._brokers = choose_brokers(brokers, os.environ)
        self._server_key = server_key
        self._key = key
        self._name = name or f"{CLI}-{socket.gethostname()[:64]}-{os.getpid()}-{uuid4().hex[:6]}"
        self._store = bool(name) and not no_store
        self._plain = plain
        self._insecure = insecure

    def client(self) -> NfpClient:
        """The client that the options describe.

        Raises:
            ConfigError: a key or an address is wrong.
        """
        server_key = self._given_server_key()
        return NfpClient(
            self._name,
            broker=self._brokers,
            server_key=server_key,
            key=self._own_key() if server_key else None,
            state_dir=self.base_dir,
            store=self._store,
            limits=Limits(answer_s=ANSWER_S),
            failover_s=FAILOVER_S,
            insecure=self._insecure,
        )

    def _given_server_key(self) -> str:
        """The broker's key; ``PLAINTEXT`` keeps the client from looking for one itself."""
        if self._plain:
            if self._server_key:
                raise UsageError("--no-curve and --server-key: expected one of them")
            return PLAINTEXT
        return (
            broker_key(self._server_key) if self._server_key else found_broker_key(self.base_dir) or PLAINTEXT
        )

    def _own_key(self) -> Certificate | str | Path:
        if self._key:
            return self._key
        owner = self.base_dir / OWNER_FILE
        return owner if os.access(owner, os.R_OK) else own_certificate(self.base_dir, CLI)

    def run(self, work: Work, within_s: float = inf) -> int:
        """Connect within ``within_s`` seconds, do ``work``, leave; returns ``work``'s exit code, 0 for None.

        Raises:
            Failed: no broker can be reached, with what to look at, and exit code 3. Whatever ``work`` raises.
        """
        logging.getLogger("headgate").addHandler(logging.NullHandler())  # what it says is told below
        try:
            return asyncio.run(self._run(work, within_s))
        except LinkError as error:
            raise Failed(
                str(error), NO_CONNECTION, verb=f"nfp {self.verb}", advice=self._advice(str(error))
            ) from error

    async def _run(self, work: Work, within_s: float) -> int:
        async with self.client() as client:
            await self._connect(client, within_s)
            code = await work(client)
        return OK if code is None else code

    async def _connect(self, client: NfpClient, within_s: float) -> None:
        """Wait for a broker, but not when none lets us in because of keys: that does not pass by waiting."""
        try:
            await client.wait_connected(min(CONNECT_S * len(self._brokers), within_s))
        except LinkBroken:
            raise LinkBroken(client.trouble or f"{self._brokers[0]}: no answer") from None

    def _advice(self, why: str) -> Iterable[str]:
        if "key" in why or "CURVE" in why or "hangs up" in why:
            yield "the broker's public key is in broker.key of its base directory: give that file with --server-key"
            yield "`headgate nfp keys` shows which keys are used here; --no-curve speaks plaintext"
        else:
            yield f"is a broker running at {', '.join(self._brokers)}? `headgate nfp broker` starts one;"
            yield "--broker or $HEADGATE_NFP name another address"


def folder(base_dir: str | None) -> Path:
    """The folder of keys that ``--base-dir`` names."""
    return Path(base_dir) if base_dir else default_base_dir()


def short(value: Any, width: int = 100) -> str:
    """A value in one line of at most ``width`` characters."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."


# -- commands with the options of the connection ---------------------------------------------------

_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "brokers": (Brokers, None),
    "server_key": (ServerKey, None),
    "key": (Key, None),
    "name": (Name, None),
    "base_dir": (BaseDir, None),
    "plain": (Plain, False),
    "insecure": (Insecure, False),
    "as_json": (options.AsJson, False),
}
"""Parameter of ``NfpSession`` -> its option and default."""
_STORE: Final[dict[str, tuple[Any, Any]]] = {"no_store": (NoStore, False)}
"""The same, of verbs that submit jobs."""


def with_session(verb: str, *, submits: bool = False) -> Callable[[Callable[..., Any]], Callable[..., int]]:
    """Make a command of ``async def work(client, screen, ...)``, which is connected before and left afterwards and
    returns an exit code, None for 0; or of ``def work(session, ...) -> int``, which checks what it was given and runs
    the session.

    To its other parameters, the options of the command, those of the connection and ``--json`` are added; of a verb
    that ``submits`` jobs, which a named client keeps, ``--no-store``, too. Its docstring is the help.
    """
    shared = _OPTIONS | (_STORE if submits else {})

    def made(work: Callable[..., Any]) -> Callable[..., int]:
        asynchronous = iscoroutinefunction(work)

        def command(**given: Any) -> int:
            session = NfpSession(verb, **{name: given.pop(name) for name in shared})
            if asynchronous:
                return session.run(lambda client: work(client, session.screen, **given))
            return work(session, **given)  # type: ignore[no-any-return]

        return options.with_shared(command, work, 2 if asynchronous else 1, shared)

    return made
