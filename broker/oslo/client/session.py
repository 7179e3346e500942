"""The way into the pipelines that callers see, from any thread or greenlet; the clients of this process, one for each
``Settings``, and what a fork does to them.

Nothing is opened before the first message or listener: services make their driver objects first and fork afterwards.
What a forked child inherits of running clients belongs to the parent: it is put aside whole (``_graveyard``), so that
nothing of it is closed, ended or collected, and the child begins anew, with locks, queues, descriptors and identities
of its own, as soon as it uses a session.
"""

# compiled: mypyc

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.oslo.client.calls import CONFIRM_S, Answer, Cast, PendingCall
from broker.oslo.client.client import Client
from broker.oslo.client.inbox import ClientInbox
from broker.oslo.client.publishing import Publication
from broker.oslo.client.waiting import (
    NativeWaiter,
    bounded,
    bury_dispatchers,
    end_dispatchers,
    new_waiter,
)
from broker.oslo.contract import (
    Address,
    Closed,
    Refused,
    Settings,
    TooLarge,
    Undelivered,
)
from broker.oslo.frames import Kind, check_name
from broker.oslo.names import LISTENER_CHARS, Reason
from broker.oslo.reactor import natives
from broker.oslo.records import Record
from broker.trust import folder_objection

log = logging.getLogger("headgate.oslo")

CHECKED_MAX: Final = 4096
"""Addresses whose names were checked; beyond it all are checked again."""
STUCK_S: Final = 10.0
"""So long after its end a call is given up even if the thread of the sockets says nothing, which would be a bug."""


class ProcessState:
    """What one process has; a forked child begins with a new one.

    Attributes:
        lock: a real one, held for a few instructions.
        clients: those in use, by their settings.
    """

    def __init__(self) -> None:
        self.lock = natives.allocate_lock()
        self.clients: dict[Settings, Client] = {}


_graveyard: list[Any] = []
_exit_known = False
state = ProcessState()


def attach(mine: ProcessState, settings: Settings) -> Client:
    """A client for ``settings``; give it back by ``detach``. Under the lock of ``mine``, the state of this process.

    Raises:
        OsloFailure: the thread of the sockets could not be started.
    """
    global _exit_known
    client = mine.clients.get(settings)
    if client is None or client.failed:
        client = Client(settings)
        client.start()
        mine.clients[settings] = client
        if not _exit_known:
            _exit_known = True
            atexit.register(_at_exit)
    client.users += 1
    return client


def detach(mine: ProcessState, client: Client) -> None:
    """Give a client back; its last user waits until it has flushed and closed, not much longer than its linger."""
    ended = new_waiter()
    with mine.lock:
        client.users -= 1
        if client.users > 0:
            return
        if mine.clients.get(client.settings) is client:
            del mine.clients[client.settings]
        wait = client.end(ended)
    wait()
    if not mine.clients:
        end_dispatchers()


def _at_exit() -> None:
    """The interpreter ends: whoever did not close its session has its messages flushed, too (never through a hub)."""
    mine = state
    waits = []
    with mine.lock:
        for client in mine.clients.values():
            client.end_inboxes()  # threads of servers are joined after this: they must find nothing more to do
            waits.append(client.end(NativeWaiter()))
        mine.clients.clear()
    for wait in waits:
        wait()


def _after_fork() -> None:
    """In the child: keep what is the parent's for ever, untouched, and begin anew."""
    global state
    buried = [state, bury_dispatchers()]
    _graveyard.append(buried)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(buried))  # not even the end of the interpreter may collect it
    state = ProcessState()


os.register_at_fork(after_in_child=_after_fork)


def open_session(settings: Settings) -> ClientSession:
    """A session for ``settings``; nothing is opened before its first use."""
    return ClientSession(settings)


class ClientSession:
    """One process's way into the pipelines of its configuration.

    Every body that is larger than ``Settings.message_bytes_max``, or than what the node's proxy says it takes, is
    ``TooLarge``. In the thread of the sockets (see ``start_call``) nothing can be waited for: what would have to wait
    there is ``Undelivered``. It goes on working in a forked child, with a client of the child's own.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._mine: ProcessState | None = None
        self._client: Client | None = None
        self._inboxes: list[ClientInbox] = []
        self._closed = False
        self._checked: set[Address] = set()

    # ------------------------------------------------------------ the client behind it

    def _use(self, *addresses: Address) -> Client:
        """The client, made when there is none in this process. Names of ``addresses`` are checked once.

        Raises:
            ValueError: one of them cannot be sent.
        """
        for address in addresses:
            if address not in self._checked:
                self._check(address)
        client = self._client
        if client is not None and self._mine is state and not (self._closed or client.failed):
            return client
        mine = state
        with mine.lock:
            if self._closed:
                raise Closed("the session is closed")
            if self._mine is not mine or self._client is None or self._client.failed:
                if not self._settings.directories:
                    self._check_folder()
                self._client = attach(mine, self._settings)
                self._inboxes = []
                self._mine = mine
            return self._client

    def _check_folder(self) -> None:
        """Nothing may be sent to what somebody else has put there.

        Raises:
            Refused: it is none of ours.
        """
        text = folder_objection(self._settings.ipc_dir)
        if text:
            raise Refused(f"the proxy of this node cannot be trusted: {text}", Reason.DENIED)

    def _check(self, address: Address) -> None:
        for name, what in zip(address, ("exchange", "topic", "server"), strict=True):
            check_name(name, what)
        if not address.topic:
            raise ValueError(f"exchange {address.exchange!r}: saw no topic, expected one")
        if len(self._checked) >= CHECKED_MAX:
            self._checked.clear()
        self._checked.add(address)

    # ------------------------------------------------------------ calls

    def call(
        self,
        address: Address,
        body: bytes,
        *,
        timeout_s: float | None,
        monitor_s: float | None = None,
        mandatory: bool = False,
        kind: Kind = Kind.CALL,
        tries: int | None = None,
    ) -> bytes:
        """Call and wait for the body of the reply; a cast with ``mandatory`` waits until a server has it.

        Raises:
            CallTimeout, Unroutable (``mandatory``), Refused, Closed.
            Undelivered: with ``mandatory``, when no directory has answered yet: nobody knows who listens.
            ValueError: a name that cannot be sent, or a time that is not a number. An infinite one is none.
        """
        waiter = new_waiter()
        client, call = self.start_call(
            address,
            body,
            waiter.set,
            timeout_s=timeout_s,
            monitor_s=monitor_s,
            mandatory=mandatory,
            kind=kind,
            tries=tries,
        )
        try:
            if client.is_ours() and not call.over:
                raise Undelivered(f"{address}: the thread of the sockets would wait for itself")
            waiter.wait(None if call.timeout_s is None else call.timeout_s + STUCK_S)
        finally:
            if not call.over:
                client.post(client.calls.abandon, call)
        answer = call.answer
        if isinstance(answer, bytes):
            return answer
        if answer is None:
            raise Closed(f"{address}: the thread of the sockets does not answer (a bug, or it is stopped)")
        raise answer

    def start_call(
        self,
        address: Address,
        body: bytes,
        done: Callable[[Answer], None],
        *,
        timeout_s: float | None,
        monitor_s: float | None = None,
        mandatory: bool = False,
        kind: Kind = Kind.CALL,
        tries: int | None = None,
    ) -> tuple[Client, PendingCall]:
        """As ``call`` without waiting: ``done`` is called once, in the thread of the sockets."""
        client = self._use(address)
        seconds = bounded(timeout_s)
        call = PendingCall(
            address,
            body,
            client.calls.ids.next(),
            done,
            kind=kind,
            due_s=None if seconds is None else time.monotonic() + seconds,
            timeout_s=seconds,
            monitor_s=bounded(monitor_s),
            mandatory=mandatory,
            tries=tries,
            owner=self,
        )
        if call.size > client.routes.body_max:
            call.finish(TooLarge(address, call.size, client.routes.body_max))
        elif not client.post(client.calls.start, call):
            call.finish(Closed(f"{address}: the session is closed"))
        return client, call

    # ------------------------------------------------------------ casts, fan-outs, notifications

    def cast(
        self, address: Address, body: bytes, *, mandatory: bool = False, retry: int | None = None
    ) -> None:
        """Send to one server; returns when it is handed over, with ``mandatory`` when a server has it.

        ``retry``: None or -1 for ever, 0 one attempt, N attempts more.

        Raises:
            Undelivered, Unroutable (``mandatory``), Refused, Closed.
        """
        if mandatory:
            tries = None if retry is None or retry < 0 else retry
            self.call(address, body, timeout_s=CONFIRM_S, kind=Kind.CAST, mandatory=True, tries=tries)
            return
        client = self._use(address)
        client.submit(client.casts, Cast(address, body), retry)

    def fanout(self, address: Address, body: bytes, *, retry: int | None = None) -> None:
        """Send to every server of the topic; as ``cast``. Nodes that could not be reached are logged and counted."""
        client = self._use(address)
        client.submit(client.fanouts, Publication(address, body), retry, patient=False)

    def notify(self, exchange: str, topic: str, body: bytes, *, retry: int | None = None) -> None:
        """Send to one listener of each pool at ``topic`` (its priority at the end); as ``fanout``."""
        address = Address(exchange, topic)
        client = self._use(address)
        client.submit(client.notifications, Publication(address, body), retry, patient=False)

    # ------------------------------------------------------------ listeners

    def listen(self, address: Address) -> ClientInbox:
        """Listen as an rpc-server: to the topic, to the server of that name, to fan-outs.

        Returns once the node's proxy has confirmed, or warns after ``Settings.ready_s`` and goes on trying.

        Raises:
            Refused: this process may not listen there.
        """
        return self._listen([address], None, rpc=True)

    def listen_notifications(self, topics: Sequence[tuple[str, str]], pool: str | None) -> ClientInbox:
        """Listen to notifications at ``(exchange, topic)`` pairs; as ``listen``.

        Raises:
            Refused: this process may not listen there.
        """
        if not topics:
            raise ValueError("listener for notifications: saw no topic, expected one at least")
        check_name(pool or "", "pool")
        addresses = [Address(exchange, topic) for exchange, topic in dict.fromkeys(topics)]
        return self._listen(addresses, pool, rpc=False)

    def _listen(self, addresses: Sequence[Address], pool: str | None, *, rpc: bool) -> ClientInbox:
        self._check_folder()
        client = self._use(*addresses)
        listener = os.urandom(LISTENER_CHARS // 2).hex()
        records = [Record(each.exchange, each.topic, each.server, listener, pool) for each in addresses]
        settings = self._settings
        owner = client.listeners
        limits = (settings.inbox_msgs, settings.inbox_bytes)
        body_max = client.routes.body_max
        inbox = ClientInbox(client.post, owner, listener, records, pool, limits, rpc=rpc, body_max=body_max)
        where = f"{records[0].exchange}/{records[0].topic}"
        with state.lock:
            if self._closed:
                raise Closed(f"{where}: the session is closed")
            self._inboxes = [each for each in self._inboxes if not each.closed] + [inbox]
        if not client.post(owner.begin, inbox):
            inbox.cut_off()
        ready = inbox.ready.wait(0.0 if client.is_ours() else settings.ready_s)
        if inbox.stopping:
            inbox.close()
            raise Closed(f"{where}: the session was closed")
        if inbox.refusal:
            inbox.close()
            raise Refused(f"{where}: {inbox.refusal}", Reason.DENIED)
        if not ready:
            self._warn_late(inbox, where)
        return inbox

    def _warn_late(self, inbox: ClientInbox, where: str) -> None:
        settings = self._settings
        missing = ", ".join(sorted(map(str, inbox.missing)))
        if inbox.begun_s and not missing:
            text = "listening at %s: not listed within %g s by the directory of this node (%s: %s), still waiting"
            missing = "confirmed by its proxy"
        else:
            text = "listening at %s: not confirmed within %g s by the proxy of this node (%s: %s); going on trying"
        # who does not wait knows
        level = logging.WARNING if settings.ready_s > 0 else logging.DEBUG
        log.log(level, text, where, settings.ready_s, settings.ipc_dir, missing or "not asked yet")

    # ------------------------------------------------------------ status and end

    def status(self) -> dict[str, Any]:
        """What this process counts, its sockets, what it knows of the directory; {} when nothing is open."""
        client = self._client
        if client is None or self._mine is not state or client.over:
            return {}
        waiter = new_waiter()
        status: dict[str, Any] = {}

        def tell() -> None:
            status.update(client.status())
            waiter.set()

        if client.post(tell):
            waiter.wait(1.0)
        return status

    def close(self) -> None:
        """Flush what was handed over, within ``Settings.linger_s``, then end; harmless twice."""
        mine = state
        with mine.lock:
            if self._closed:
                return
            self._closed = True
            inboxes, self._inboxes = self._inboxes, []
            client = self._client if self._mine is mine else None
        if client is None:
            return
        for inbox in inboxes:
            inbox.begin_stop()
        for inbox in inboxes:
            inbox.close()
        left = new_waiter()
        if client.post(client.leave, self, left):
            left.wait(self._settings.linger_s)
        detach(mine, client)
