"""A node's proxy in one thread: its rooms, signals, the service manager.

Rooms know nothing of each other: the directory's and each pipeline's can run here together, or in processes of their
own (zmq-patterns-usage, "we can use a separate proxy for each pipeline to keep them independent").
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from broker import supervision
from broker.errors import ConfigError
from broker.journal.options import JournalOptions
from broker.memory import Trim
from broker.oslo.names import Pipeline
from broker.oslo.node import DIRECTORY, EVERYTHING, NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.folder import NodeFolder
from broker.oslo.proxy.journal import Recording
from broker.oslo.proxy.reload import Reload, Reread
from broker.oslo.reactor import Reactor
from broker.trust import overflow_uid

if TYPE_CHECKING:
    from broker.oslo.directory.server import DirectoryServer
    from broker.oslo.proxy.pipeline import PipelineRoom

FLUSH_S: Final = 1.0
"""What waits for its receivers has so long to leave."""
RESTART_FLUSH_S: Final = 10.0
"""The same before a restart, as long as it moves: clients wait for the next proxy meanwhile. Units allow 15 s."""
SETTLE_S: Final = 0.05
"""At least this is waited between the farewell of the pipelines and the end of the directory, which passes it on."""
LINGER_MS: Final = 250
"""After that, libzmq's own queues."""
_LOOK_S: Final = 0.01


class NodeProxy:
    """One node's proxy, or the part of it that ``config.run`` names.

    Args:
        config: see ``node``.
        journal: record what passes; None: nothing.
        reread: how SIGHUP reads the configuration again (``reload``); None: it changes nothing.

    Attributes:
        reactor: of all rooms.
        pipelines: by name, once opened. directory: None where it does not run.
        acl: of all rooms.
        reload: reads the settings again; from ``open`` on.
    """

    reload: Reload

    def __init__(
        self, config: NodeConfig, journal: JournalOptions | None = None, reread: Reread | None = None
    ) -> None:
        self.config = config
        self.reactor = Reactor(clock=time.monotonic)
        self.pipelines: dict[str, PipelineRoom] = {}
        self.directory: DirectoryServer | None = None
        self.acl = AccessControl(config, shared_uid=overflow_uid())
        self._reread = reread
        self._folder = NodeFolder(config.ipc_dir, config.ipc_group)
        teller = next((pipeline for pipeline in Pipeline if pipeline in config.run), "")
        self._recording = Recording(journal, self.reactor, teller) if journal is not None else None
        self._opened = False
        self._leaving = False
        self._at_once = False
        self._least, self._moved_s = 0, 0.0
        """The fewest messages that waited since the end began, and since when."""

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Bind everything; harmless twice.

        Raises:
            ConfigError: nothing or something unknown is to run; a folder, file or port cannot be had; plaintext off
                loopback.
        """
        if self._opened:
            return
        wrong = self.config.run - EVERYTHING
        if wrong or not self.config.run:
            raise ConfigError(f"run {sorted(self.config.run)}: expected some of {sorted(EVERYTHING)}")
        if not self.config.node:
            raise ConfigError("node '': expected the name of this node")
        supervision.raise_descriptor_limit()
        self._folder.open(self.config.run)
        try:
            self.reactor.open()
            if self._recording is not None:
                self._recording.begin(self.reactor)
            if DIRECTORY in self.config.run:
                from broker.oslo.directory.server import DirectoryServer  # loaded where it runs

                directory = DirectoryServer(self.reactor, self.config)
                directory.settings = self.acl.settings
                directory.open()
                self.directory = directory
            for pipeline in Pipeline:
                if pipeline in self.config.run:
                    room = make_pipeline(pipeline, self.reactor, self.config, self.acl, self._recording)
                    room.open()
                    self.pipelines[pipeline] = room
            reread, acl = self._reread, self.acl
            self.reload = Reload(self.reactor, self.config, reread, acl, self.pipelines, self.directory)
        except BaseException:
            self._close(0)
            raise
        self._opened = True

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Open, and serve in this thread until ``stop`` or a signal; ``ready`` is called when all is bound.

        SIGTERM ends this process, as for a restart: clients hold what they have, for as long as a lease, and another
        process goes on with it. SIGINT leaves for good, and says so to everybody. A second one of them ends at once;
        SIGHUP reads keys, rules and certificate again. Other threads get no signals.

        Raises:
            ConfigError: see ``open``.
        """
        self.open()
        try:
            with self._signals():
                if ready is not None:
                    ready()
                supervision.announce(self.reactor.call_later, "READY=1")
                supervision.watch(self.reactor.call_later)
                Trim().watch(self.reactor.call_later)
                self.reactor.run()
        finally:
            supervision.notify("STOPPING=1")
            self._close(0 if self._at_once else LINGER_MS)

    def stop(self, reason: str = "the proxy is stopping", *, returns: bool = False) -> None:
        """Leave: queues have ``FLUSH_S``. From any thread; a second call at once.

        Servers and directory are told, unless the node ``returns`` at once, with another process.
        """
        self.reactor.call_threadsafe(self._leave, reason, returns)

    def status(self) -> dict[str, Any]:
        """STATUS of all rooms."""
        directory = {} if self.directory is None else {DIRECTORY: self.directory.status()}
        return directory | {name: room.status() for name, room in self.pipelines.items()}

    # ------------------------------------------------------------ leaving

    def _leave(self, reason: str, returns: bool) -> None:
        if self._leaving:
            self._at_once = True
            self.reactor.stop()
            return
        self._leaving = True
        self.reactor.say(logging.INFO, "%s: %s", ("stopping" if returns else "leaving for good", reason))
        for name, room in self.pipelines.items():
            self._guarded(name, room, reason, returns)
        now = self.reactor.now()
        self._least, self._moved_s = sys.maxsize, now
        self._flush(reason, returns, now + SETTLE_S, now + (RESTART_FLUSH_S if returns else FLUSH_S))

    def _guarded(self, name: str, room: PipelineRoom | DirectoryServer, reason: str, returns: bool) -> None:
        try:
            room.stop(reason, returns=returns)
        except Exception:
            logging.getLogger("headgate.oslo").exception("%s could not stop in order", name)

    def _flush(self, reason: str, returns: bool, settled_s: float, over_s: float) -> None:
        now = self.reactor.now()
        waiting = sum(room.waiting for room in self.pipelines.values())
        if waiting < self._least:
            self._least, self._moved_s = waiting, now
        if now < settled_s or (waiting and now < min(over_s, self._moved_s + FLUSH_S)):
            self.reactor.call_later(_LOOK_S, self._flush, reason, returns, settled_s, over_s)
            return
        if waiting:
            text = (
                "%d messages that waited for their receivers are lost, but for what their senders send again"
            )
            self.reactor.say(logging.WARNING, text, (waiting,))
        if self.directory is not None:
            self._guarded(DIRECTORY, self.directory, reason, returns)
        self.reactor.call_soon(self.reactor.stop)

    def _close(self, linger_ms: int) -> None:
        for room in self.pipelines.values():
            room.close(linger_ms)
        if self._recording is not None:
            self._recording.stop()
        if self.reactor.context is not None:
            self.reactor.context.destroy(linger_ms)  # whatever is left: the end must not wait for anything
        self.reactor.close()
        self._folder.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers: dict[int, Any] = {
            signal.SIGTERM: lambda number, _frame: self.stop(signal.Signals(number).name, returns=True),
            signal.SIGINT: lambda number, _frame: self.stop(signal.Signals(number).name),
            signal.SIGHUP: lambda _number, _frame: self.reload.request(),
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def make_pipeline(
    name: Pipeline, reactor: Reactor, config: NodeConfig, acl: AccessControl, recording: Recording | None
) -> PipelineRoom:
    """The pipeline ``name``, not opened; only what runs is loaded."""
    module = import_module(f"broker.oslo.proxy.{name}")
    room: PipelineRoom = getattr(module, f"{name.capitalize()}Proxy")(reactor, config, acl, recording)
    return room
