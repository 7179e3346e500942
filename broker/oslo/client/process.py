"""The core of this process: one real thread with one reactor for all sessions, and what a fork does to it.

Nothing is opened before the first message or listener: services make their driver objects first and fork afterwards.
What a forked child inherits of a running core belongs to the parent: it is put aside whole (``_graveyard``), so that
nothing of it is closed, ended or collected, and the child begins anew, with locks, queues, descriptors and identities
of its own, as soon as it uses a session.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import logging
import os
import time
from typing import Any, Final

from broker.oslo.client.client import Client
from broker.oslo.client.waiting import (
    LogWriter,
    NativeWaiter,
    Waiter,
    bury_dispatchers,
    end_dispatchers,
    new_waiter,
)
from broker.oslo.contract import OsloFailure, Settings
from broker.oslo.reactor import Reactor, natives

log = logging.getLogger("headgate.oslo")

THREAD_NAME: Final = "headgate-oslo-sockets"
SAID_S: Final = 0.5
"""How long the last lines of the thread may take to be written."""
END_S: Final = 5.0
"""How much longer than its linger the end of a client is waited for: then the thread is stuck, which is a bug."""


class ProcessCore:
    """The thread that owns the sockets of this process.

    Attributes:
        clients: by their settings, those that may be shared.
        retired: no client is to be added any more; the thread ends after the last one.
        failed: the thread has ended in an error.
    """

    def __init__(self) -> None:
        self.say = LogWriter()
        self.reactor = Reactor(say=self.say, clock=time.monotonic)
        self.clients: dict[Settings, Client] = {}
        self.retired = self.failed = False
        self._open: set[Client] = set()
        self._ended: dict[Client, Waiter] = {}

    def start(self) -> None:
        """Open what the reactor needs and start the thread.

        Raises:
            OsloFailure: no descriptors or memory for it.
        """
        try:
            self.reactor.open()
            natives.start_thread(self._run, THREAD_NAME)
        except (OSError, RuntimeError) as error:
            number = error.errno if isinstance(error, OSError) and error.errno else errno.EAGAIN
            raise OsloFailure(f"the thread of the sockets cannot be started: {error}", number) from error

    def client(self, settings: Settings) -> Client:
        """The one for ``settings``, made when there is none; a user more of it. Under the state's lock."""
        client = self.clients.get(settings)
        if client is None:
            client = self.clients[settings] = Client(self.reactor, settings)
            self._open.add(client)
            self.reactor.call_threadsafe(client.open)
        client.users += 1
        return client

    def flush_log(self) -> None:
        """Wait until the lines are written that it has said."""
        self.say.flush(SAID_S)

    def leave(self, client: Client, ended: Waiter) -> bool:
        """A user less; ``ended`` is set when the last one has gone and all is closed. Under the state's lock.

        Returns False when others still use it; ``ended`` is not used then.
        """
        client.users -= 1
        if client.users > 0 or client in self._ended:
            return False
        if self.clients.get(client.settings) is client:
            del self.clients[client.settings]
        self.retired = not self.clients
        self._ended[client] = ended
        self.reactor.call_threadsafe(client.close, self._closed)
        if self.failed:  # looked at last: the thread looks at ``_ended`` after it has set it
            ended.set()
        return True

    def _closed(self, client: Client) -> None:
        """In the thread: one has closed its sockets."""
        self._open.discard(client)
        if not self._open and self.retired:
            self.reactor.stop()
        elif not self.retired:
            self._ended.pop(client).set()

    def _run(self) -> None:
        try:
            self.reactor.run()
        except Exception as error:
            self._fail(error)
        finally:
            self.reactor.close()
            for ended in list(self._ended.values()):
                ended.set()

    def _fail(self, error: Exception) -> None:
        """The loop itself has failed: say so, leave nobody waiting, and let whoever comes next begin anew."""
        self.failed = True
        self.reactor.report(error)
        text = (
            "the thread of the sockets has ended: calls that wait fail, the next one starts a new thread;"
            " servers and listeners of this process (pid %d) hear nothing until they are started again"
        )
        self.reactor.say(logging.CRITICAL, text, (os.getpid(),))
        for client in list(self._open):
            try:
                client.abandon()
            except Exception as other:  # of one client; those of others wait, too
                self.reactor.report(other)


class ProcessState:
    """What one process has; a forked child begins with a new one.

    Attributes:
        lock: a real one, held for a few instructions.
        cores: the one in use is the last; others are ending.
    """

    def __init__(self) -> None:
        self.lock = natives.allocate_lock()
        self.cores: list[ProcessCore] = []


_graveyard: list[Any] = []
_exit_known = False
state = ProcessState()


def attach(mine: ProcessState, settings: Settings) -> tuple[ProcessCore, Client]:
    """A client for ``settings``; give it back by ``detach``. Under the lock of ``mine``, the state of this process.

    Raises:
        OsloFailure: the thread of the sockets could not be started.
    """
    global _exit_known
    core = mine.cores[-1] if mine.cores else None
    if core is not None and core.failed:
        mine.cores.remove(core)
    if core is None or core.retired or core.failed:
        core = ProcessCore()
        core.start()
        mine.cores.append(core)
        if not _exit_known:
            _exit_known = True
            atexit.register(_at_exit)
    return core, core.client(settings)


def detach(mine: ProcessState, core: ProcessCore, client: Client) -> None:
    """Give a client back; its last user waits until it has flushed and closed, not much longer than its linger."""
    ended = new_waiter()
    with mine.lock:
        if not core.leave(client, ended):
            return
    _await(ended, client)
    core.flush_log()
    with mine.lock:
        if (core.retired or core.failed) and core in mine.cores:
            mine.cores.remove(core)
        last = not mine.cores
    if last:
        end_dispatchers()


def _await(ended: Waiter, client: Client) -> None:
    seconds = client.settings.linger_s + END_S
    if not ended.wait(seconds):
        log.error("the sockets of %s were not closed within %.1f s", client.settings.ipc_dir, seconds)


def _at_exit() -> None:
    """The interpreter ends: whoever did not close its session has its messages flushed, too (never through a hub)."""
    mine = state
    ending: list[tuple[Client, NativeWaiter]] = []
    with mine.lock:
        for core in mine.cores:
            for client in list(core.clients.values()):
                client.users = 1
                client.end_inboxes()  # threads of servers are joined after this: they must find nothing more to do
                ended = NativeWaiter()
                if core.leave(client, ended):
                    ending.append((client, ended))
    for client, ended in ending:
        _await(ended, client)
    for core in list(mine.cores):
        core.flush_log()


def _after_fork() -> None:
    """In the child: keep what is the parent's for ever, untouched, and begin anew."""
    global state
    buried = [state, bury_dispatchers()]
    _graveyard.append(buried)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(buried))  # not even the end of the interpreter may collect it
    state = ProcessState()


os.register_at_fork(after_in_child=_after_fork)
