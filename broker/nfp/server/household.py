"""Workers in the broker's own process: the file service (NFP, "Broker File Sharing Service")."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.errors import ConfigError
from broker.nfp.names import Sender
from broker.nfp.server.local import LocalChannel
from broker.settings.nfp import NfpSection

if TYPE_CHECKING:
    from broker.nfp.files.service import FileService
    from broker.nfp.worker.worker import Worker

log = logging.getLogger("headgate")
PATIENCE_S: Final = 1.0
"""How long what they are doing may take once the broker leaves: a transfer is resumed from the next one."""

Channels = Callable[[str, Sender], LocalChannel]


class Household:
    """The workers that live with the broker.

    Args:
        settings: the section ``[nfp]``. channels: see ``NfpBroker.local_channel``.
    """

    def __init__(self, settings: NfpSection, channels: Channels) -> None:
        self._settings = settings
        self._channels = channels
        self._files: FileService | None = None
        self._workers: list[Worker] = []
        self._tasks: list[asyncio.Task[str]] = []

    def start(self) -> None:
        """Begin.

        Raises:
            ConfigError: the folder that is shared cannot be used.
        """
        settings = self._settings
        if not settings.files_dir:
            return
        from broker.nfp.files.service import FileService

        own = [path for path in (settings.secret_file, settings.store_file, settings.inventory) if path]
        try:
            self._files = FileService(settings.files_dir, deny=settings.files_deny, own=own)
        except OSError as error:
            raise ConfigError(
                f"{settings.files_dir}: cannot share this folder: {error.strerror}", error.errno
            ) from error
        self._workers = self._files.local_workers(lambda name: self._channels(name, Sender.WORKER))
        loop = asyncio.get_running_loop()
        for worker in self._workers:
            worker.drain_s = PATIENCE_S
            task = loop.create_task(worker.run(), name=worker.name)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """End, within ``PATIENCE_S`` or a little more. Harmless twice."""
        tasks, self._tasks = self._tasks, []
        for worker in self._workers:
            worker.stop()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=2 * PATIENCE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._files is not None:
            self._files.close()

    def _ended(self, task: asyncio.Task[str]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("%s ended", task.get_name(), exc_info=task.exception())
