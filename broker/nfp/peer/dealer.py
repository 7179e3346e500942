"""The channel across the network: an ordered list of brokers, one connection at a time, as a DEALER.

The life of one session::

    resolve the name -> connect -> handshake -> OPEN is sent -> the broker's OPEN, or open_timeout_s -> connected
      ... -> connection lost | DISCONNECT | another epoch | reopen() -> lost -> wait a little -> resolve ...

Deployed NorFab's broker drops OPEN without a word, so silence means: go on without features. A broker that has
answered OPEN before and now does not is tried on a new connection first: it may not have noticed the end of our former
one, whose name the new one wants (``server.router``).
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from broker.endpoints import parse
from broker.errors import ConfigError, LinkBroken, LinkClosed, LinkError, LinkRefused
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Sender
from broker.nfp.peer.brokers import Brokers, ConnectFailures
from broker.nfp.peer.channel import Receiver, Traffic
from broker.nfp.peer.keys import check_name
from broker.nfp.peer.session import BrokerSession
from broker.transport.byte_stream import all_left
from broker.transport.curve import CurveClient
from broker.transport.zeromq.dialing import open_connection
from broker.transport.zeromq.listening import SCHEMES

log = logging.getLogger("headgate")
OPEN_TIMEOUT_S: Final = 0.5
"""How long the broker's OPEN may take before it is taken for a deployed NorFab broker, which has none."""
FAILOVER_S: Final = 5.0
ATTEMPT_S: Final = 5.0
"""One address may take so long for the handshake."""
UNHEARD_S: float = 5.0
"""A worker that was registered for so long has got a KEEPALIVE, also of a deployed broker."""
UNANSWERED: Final = 3
"""New connections tried for an OPEN of ours that a broker which used to answer leaves without answer."""
CLOSE_S: Final = 1.0
"""How long ``close`` waits for the outbox ..."""
LINGER_S: Final = 0.25
"""... and then for the broker to take what was written."""


class DealerChannel:
    """See ``Channel``.

    Args:
        endpoints: brokers in order of preference, ``tcp://HOST:PORT`` or ``ipc://PATH``; names are resolved at each
            connect. See ``Brokers`` for when the next one is used.
        identity: name of the peer, at most 255 bytes.
        sender: CLIENT or WORKER.
        curves: keys for each endpoint, see ``keys.credentials``; those without, which only this machine's endpoints or
            ``insecure`` allow, are spoken to in plaintext.
        open_timeout_s: see ``OPEN_TIMEOUT_S``. failover_s: patience with one broker; 0: never go on to the next.
        refused: called after each attempt once every broker of the list has refused us, as long as none has ever let us
            in: its key, or ours, is not what the other side expects, which does not pass by waiting.

    Raises:
        ConfigError: no or bad endpoints or name.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        identity: str,
        sender: Sender,
        curves: Mapping[str, CurveClient],
        open_timeout_s: float = OPEN_TIMEOUT_S,
        failover_s: float = FAILOVER_S,
        insecure: bool = False,
        refused: Callable[[LinkRefused], None] | None = None,
    ) -> None:
        for endpoint in endpoints:
            parse(endpoint, *SCHEMES)
        self.name = check_name(identity)
        self._trouble = "not started"
        self.traffic = Traffic()
        self._sender = sender
        self._curves = dict(curves)
        self._many = len(endpoints)
        self._open_timeout_s = open_timeout_s
        self._insecure = insecure
        self._brokers = Brokers(endpoints, failover_s, 0.0)
        self._failures = ConnectFailures(self.name)
        self._refused = refused
        self._refusing: set[str] = set()
        self._answering: set[str] = set()
        self._unanswered = 0
        self._session: BrokerSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._room = asyncio.Event()

    @property
    def broker(self) -> str:
        """See ``Channel``."""
        return self._brokers.current

    @property
    def trouble(self) -> str:
        """See ``Channel``."""
        session = self._session
        return session.trouble if session is not None and session.begun else self._trouble

    # -- Channel ----------------------------------------------------------------------------------

    def start(self, receiver: Receiver, open_body: Callable[[], dict[str, Any]]) -> None:
        """See ``Channel``."""
        if self._task is not None:
            raise RuntimeError(f"the channel of {self.name} was started before")
        loop = asyncio.get_running_loop()
        self._brokers.note_reached(loop.time())  # patience begins now
        self._trouble = f"{self.broker}: no answer yet"
        self._task = loop.create_task(self._run(receiver, open_body), name=f"channel of {self.name}")

    def send(self, packet: Packet) -> bool:
        """See ``Channel``."""
        session = self._session
        if session is not None and session.begun and session.send(packet):
            return True
        self.traffic.refused += 1
        self._room.clear()
        return False

    def send_from_thread(self, packet: Packet) -> bool:
        """``send`` for another thread while that of the loop is blocked: it leaves at once, behind what waits."""
        session = self._session
        return session is not None and session.send_from_thread(packet)

    async def writable(self) -> None:
        """See ``Channel``."""
        while self._session is None or not self._session.writable:
            if self._closed:
                raise LinkClosed(f"the channel of {self.name} is closed")
            self._room.clear()
            await self._room.wait()

    def reopen(self, why: str) -> None:
        """See ``Channel``."""
        if self._session is not None:
            self._session.end(why)

    async def close(self) -> None:
        """See ``Channel``."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_S):
                while (session := self._session) is not None and session.waiting:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            log.warning("%s: closed with messages that %s did not take", self.name, self.broker)
        self._room.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await all_left(LINGER_S)
        self._trouble = "closed"

    # -- the loop ---------------------------------------------------------------------------------

    async def _run(self, receiver: Receiver, open_body: Callable[[], dict[str, Any]]) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed:  # an error of the session's end may have taken the place of the cancellation
            try:
                await self._run_session(await self._dial(receiver), open_body)
            except (LinkError, ConfigError) as error:
                self._note_failure(error, loop.time())
            except Exception as error:  # such as no descriptor left; giving up here would be for good
                log.exception("%s: the broker %s could not be talked to", self.name, self.broker)
                self._note_failure(LinkBroken(f"{self.broker}: {error}"), loop.time())
            await asyncio.sleep(self._brokers.pause_s)

    async def _dial(self, receiver: Receiver) -> BrokerSession:
        """A connection whose handshake is over.

        Raises:
            LinkError: nobody there, or it does not let us in. ConfigError: plaintext off this machine.
        """
        broker = self._brokers.current
        about = parse(broker, *SCHEMES), broker, self._curves.get(broker), self.name.encode()
        sock, opened = await open_connection(*about, self._insecure, ATTEMPT_S)
        return BrokerSession(self, receiver, broker, sock, opened)

    def _note_failure(self, error: LinkError | ConfigError, now: float) -> None:
        broker = self.broker
        self._trouble = self._failures.explain(broker, error, self._curves.get(broker))
        refused = self._failures.refuses(broker, error)
        (self._refusing.add if refused else self._refusing.discard)(broker)
        if self._brokers.note_failure(now, refused=refused):
            log.warning("%s: goes on to the broker %s", self.name, self._brokers.current)
        hopeless = not self.traffic.connections and len(self._refusing) == self._many
        if hopeless and self._refused is not None:
            self._refused(LinkRefused(self._trouble, errno.EACCES))

    async def _run_session(self, session: BrokerSession, open_body: Callable[[], dict[str, Any]]) -> None:
        """One session, from OPEN to its loss.

        Raises:
            LinkRefused: the broker does not serve us.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        patience = loop.call_later(self._open_timeout_s, self._give_up_open, session)
        self._session = session
        try:
            session.send(Packet(self._sender, Command.OPEN, body=msgspec.json.encode(open_body())))
            await session.over
        finally:
            patience.cancel()
            self._session = None
            session.close()
        self._trouble = session.why
        if session.begun:
            log.info("%s: lost the broker %s: %s", self.name, session.broker, session.why)
            session.tell_lost()
        if session.refused:
            raise LinkRefused(f"{session.broker}: {session.refused}", errno.EADDRINUSE)
        self._brokers.note_reached(loop.time())
        self._brokers.note_left(loop.time(), loop.time() - began if session.begun else 0.0)

    def _give_up_open(self, session: BrokerSession) -> None:
        """The broker has not answered OPEN in time."""
        if session.begun:
            return
        self._unanswered += 1
        if session.broker in self._answering and self._unanswered <= UNANSWERED:
            session.end("it did not answer OPEN")
        else:
            self._answering.discard(session.broker)
            self._unanswered = 0
            session.begin(None)
            if self._sender is Sender.WORKER:
                asyncio.get_running_loop().call_later(UNHEARD_S, self._tell_unheard, session)

    def _tell_unheard(self, session: BrokerSession) -> None:
        if session is self._session and session.trouble:
            log.warning("%s: %s", self.name, session.trouble)

    # -- what a session tells ---------------------------------------------------------------------

    def note_begin(self, session: BrokerSession, opened: dict[str, Any] | None) -> None:
        """A session begins; ``send`` takes packets from now on."""
        self.traffic.connections += 1
        self._failures.forget(session.broker)
        how = "" if opened else ": no answer to OPEN, so NorFab's, or somebody else is connected by our name"
        log.info("%s: talks to the broker %s%s", self.name, session.broker, how)

    def note_answer(self, session: BrokerSession) -> None:
        """The broker answered OPEN."""
        self._answering.add(session.broker)
        self._unanswered = 0

    def note_room(self) -> None:
        """There is room in the outbox."""
        self._room.set()
