"""The clients of this process, one for each ``Settings``, and what a fork does to them.

Nothing is opened before the first message or listener: services make their driver objects first and fork afterwards.
What a forked child inherits of running clients belongs to the parent: it is put aside whole (``_graveyard``), so that
nothing of it is closed, ended or collected, and the child begins anew, with locks, queues, descriptors and identities
of its own, as soon as it uses a session.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from typing import Any

from broker.oslo.client.client import Client
from broker.oslo.client.waiting import NativeWaiter, bury_dispatchers, end_dispatchers, new_waiter
from broker.oslo.contract import Settings
from broker.oslo.reactor import natives


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
