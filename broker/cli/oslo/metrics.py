"""``/metrics`` of a node's proxy: served beside its loop, by the process that has the node's directory.

It asks all rooms of the node, in whatever process they run, as ``headgate oslo status`` does. A thread of its own: a
scraper that is slow costs the pipelines nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from broker.exposition import TEXT, Page, PageListener, render
from broker.loopthread import LoopThread
from broker.oslo.service import asking
from broker.oslo.service.metrics import samples


@contextlib.contextmanager
def metrics_served(place: str, ipc_dir: str) -> Iterator[None]:
    """Serve ``/metrics``, and ``/livez`` while all rooms answer, from a thread.

    Args:
        place: ``unix:///PATH`` or ``http://HOST:PORT``.
        ipc_dir: the folder of the node.

    Raises:
        ConfigError: the place cannot be used.
    """
    one_at_a_time = (
        asyncio.Lock()
    )  # scrapers wait for each other: the rooms have more to do than to answer them

    async def page(path: bytes) -> Page | None:
        if path not in (b"/metrics", b"/livez"):
            return None
        async with one_at_a_time:
            said = await asyncio.to_thread(asking.statuses, ipc_dir)
        if path == b"/metrics":
            return 200, TEXT, render(samples(said)).encode()
        silent = [room for room, status in said.items() if status is None]
        text = f"no answer from {', '.join(silent)}\n" if silent else "ok\n"
        return (503 if silent else 200), "text/plain", text.encode()

    thread = LoopThread()
    listener = PageListener("oslo.metrics_listen", place, page, "/metrics and /livez")
    try:
        thread.run(listener.start())
        try:
            yield
        finally:
            thread.run(listener.stop())
    finally:
        thread.stop()
