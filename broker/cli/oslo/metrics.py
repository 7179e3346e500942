"""``/metrics`` of a node's proxy: served beside its loop, by the process that has the node's directory.

It asks all rooms of the node, in whatever process they run, as ``headgate oslo status`` does. A thread of its own: a
scraper that is slow costs the pipelines nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from types import TracebackType
from typing import Self

from broker.exposition import TEXT, Page, PageListener, render
from broker.oslo.service import asking
from broker.oslo.service.metrics import samples


class MetricsThread:
    """Serves ``/metrics``, and ``/livez`` while all rooms answer; a context manager.

    Args:
        place: ``unix:///PATH`` or ``http://HOST:PORT``.
        ipc_dir: the folder of the node.

    Raises:
        ConfigError: by ``__enter__``: the place cannot be used.
    """

    def __init__(self, place: str, ipc_dir: str) -> None:
        self._place = place
        self._ipc_dir = ipc_dir
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._leave: asyncio.Event | None = None
        self._asking: asyncio.Lock | None = None
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="metrics", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._leave is not None
        self._started.result().call_soon_threadsafe(self._leave.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._leave, self._asking = asyncio.Event(), asyncio.Lock()
        listener = PageListener("oslo.metrics_listen", self._place, self._page, "/metrics and /livez")
        try:
            await listener.start()
        except Exception as error:
            self._started.set_exception(error)
            return
        self._started.set_result(asyncio.get_running_loop())
        await self._leave.wait()
        await listener.stop()

    async def _page(self, path: bytes) -> Page | None:
        if path not in (b"/metrics", b"/livez"):
            return None
        assert self._asking is not None
        async with (
            self._asking
        ):  # scrapers wait for each other: the rooms have more to do than to answer them
            said = await asyncio.to_thread(asking.statuses, self._ipc_dir)
        if path == b"/metrics":
            return 200, TEXT, render(samples(said)).encode()
        silent = [room for room, status in said.items() if status is None]
        text = f"no answer from {', '.join(silent)}\n" if silent else "ok\n"
        return (503 if silent else 200), "text/plain", text.encode()
