"""Workers in the broker's own process: the file service (NFP, "Broker File Sharing Service")."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.backoff import Backoff
from broker.nfp.names import Sender
from broker.nfp.server.local import LocalChannel
from broker.obstacles import obstacle
from broker.settings.nfp import NfpSection
from broker.tasks import Tasks

if TYPE_CHECKING:
    from broker.nfp.files.service import FileService
    from broker.nfp.worker.worker import Worker

log = logging.getLogger("headgate")
PATIENCE_S: Final = 1.0
"""How long what they are doing may take once the broker leaves: a transfer is resumed from the next one."""

SETTLED_S: Final = 1.5
"""How long a broker that starts waits for them: it is usable without, and a signal ends it within two seconds."""
_POLL_S: Final = 0.01

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
"""Before a worker that ended is started again: twice as long each time, up to this; who lived longer begins anew."""

Channels = Callable[[str, Sender], LocalChannel]


class FilesWorker:
    """The file service's workers, which live with the broker and are started again whenever they end.

    Args:
        settings: the section ``[nfp]``. channels: see ``NfpBroker.local_channel``.
    """

    def __init__(self, settings: NfpSection, channels: Channels) -> None:
        self._settings = settings
        self._channels = channels
        self._files: FileService | None = None
        self._workers: list[Worker] = []
        self._tasks = Tasks()
        self._leaving = asyncio.Event()

    def start(self) -> None:
        """Begin.

        Raises:
            ConfigError: the folder that is shared cannot be used.
        """
        settings = self._settings
        if not settings.files_dir:
            return
        from broker.nfp.files.service import FileService
        from broker.nfp.files.tree import Tree

        own = [path for path in (settings.secret_file, settings.store_file, settings.inventory) if path]
        try:
            self._files = FileService(Tree(settings.files_dir, deny=settings.files_deny, own=own))
        except OSError as error:
            text = f"{settings.files_dir}: cannot share this folder: {error.strerror}"
            raise obstacle(text, error, absent=True) from error
        self._workers = self._files.local_workers(lambda name: self._channels(name, Sender.WORKER))
        for worker in self._workers:
            worker.drain_s = PATIENCE_S
            worker.resident = True
            self._tasks.spawn(worker.name, self._keep(worker))

    async def settled(self) -> None:
        """Wait until all of them are registered, at most ``SETTLED_S``: before that the broker lacks their services."""
        until = asyncio.get_running_loop().time() + SETTLED_S
        while not all(worker.connected for worker in self._workers):
            if asyncio.get_running_loop().time() > until:
                log.warning("the file service is not there yet: see its own lines")
                return
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(0)  # what the last one has said is handled, too

    async def stop(self) -> None:
        """End, within ``PATIENCE_S`` or a little more. Harmless twice."""
        self._leaving.set()
        for worker in self._workers:
            worker.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * PATIENCE_S):
                await self._tasks.idle()
        await self._tasks.stop()
        if self._files is not None:
            self._files.close()

    async def _keep(self, worker: Worker) -> None:
        """Let ``worker`` run, and again whenever it ends."""
        clock = asyncio.get_running_loop().time
        pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S, spread=False)
        while not self._leaving.is_set():
            began = clock()
            try:
                await worker.run()
            except Exception:
                log.exception("%s failed", worker.name)
            if self._leaving.is_set():
                return
            pause_s = pauses.after(clock() - began)
            log.warning("%s has ended and is started again in %g s", worker.name, pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), pause_s)
