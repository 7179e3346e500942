"""Counts as Prometheus text, and a small HTTP listener for scrapers and probes, for whatever runs on asyncio.

Names follow the Prometheus conventions: base units, ``_total`` on counters. The text is made when asked for.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from broker.endpoints import parse
from broker.errors import ConfigError
from broker.listening import listen, listening_at

log = logging.getLogger("headgate")

REQUEST_MAX_BYTES = 8192
REQUEST_TIMEOUT_S = 5.0
"""A scraper sends a few hundred bytes at once; one that does not is cut off."""

REQUESTS_MAX: Final = 32
"""So many at a time: descriptors are for others. For one more the oldest ends: honest ones are brief."""
PHRASES: Final = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}
TEXT: Final = "text/plain; version=0.0.4"
"""The content type of ``render``."""
Values = list[tuple[dict[str, str], float]]
Sample = tuple[str, str, str, Values]
"""(name, type, help, [(labels, value)]); the label ``PART`` of a histogram's value is the end of its name."""
PART: Final = "__name__"
Page = tuple[int, str, bytes]
"""An answer over HTTP: status, content type, body."""


def render(samples: Iterable[Sample]) -> str:
    """Prometheus text exposition format 0.0.4."""
    lines: list[str] = []
    for name, kind, text, values in samples:
        lines += [f"# HELP headgate_{name} {text}", f"# TYPE headgate_{name} {kind}"]
        for labels, value in values:
            whole = name + labels.get(PART, "")
            inner = ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items() if key != PART)
            lines.append(
                f"headgate_{whole}{{{inner}}} {value:.15g}" if inner else f"headgate_{whole} {value:.15g}"
            )
    return "\n".join(lines) + "\n"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def histogram(labels: dict[str, str], bounds: Sequence[float], counts: Sequence[int], total: float) -> Values:
    """The values of one histogram: cumulative buckets, sum and count.

    Args:
        labels: whose it is.
        bounds: upper bounds of the buckets, rising.
        counts: how many are in each; the last bucket has no bound.
        total: the sum of all.
    """
    heights = list(itertools.accumulate(counts))
    ends = [*(f"{bound:.6g}" for bound in bounds), "+Inf"]
    return [
        *(
            ({**labels, PART: "_bucket", "le": end}, float(height))
            for end, height in zip(ends, heights, strict=True)
        ),
        ({**labels, PART: "_sum"}, total),
        ({**labels, PART: "_count"}, float(heights[-1])),
    ]


class PageListener:
    """Answers ``GET PATH`` with a page, anything else with 404.

    Args:
        setting: that says where, for errors.
        place: ``unix:///PATH`` or ``http://HOST:PORT``.
        page: makes the page of a path; None: there is none.
        here: the paths that there are, for people.
    """

    def __init__(
        self,
        setting: str,
        place: str,
        page: Callable[[bytes], Awaitable[Page | None]],
        here: str = "/metrics",
    ) -> None:
        self._setting = setting
        self._place = place
        self._page = page
        self._here = here
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the place cannot be used.
        """
        try:
            asked = parse(self._place, "http", "unix")
            # plaintext is the settings' matter
            sock, _place = listen(listening_at(asked, protected=True, insecure=False), mode=0o600)
        except ConfigError as error:
            raise type(error)(f"{self._setting}: {error}", error.errno) from error
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=REQUEST_MAX_BYTES)

    async def stop(self) -> None:
        """Close the socket, and the connections that still ask there."""
        if self._server is not None:
            self._server.close()
            for writer in self._open:
                writer.transport.abort()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > REQUESTS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(*head.split(b" ", 2)[:2]))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("metrics: %s", error)
            writer.transport.abort()  # what it did not read would keep it open
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _answer(self, verb: bytes, target: bytes = b"") -> bytes:
        page = await self._page(target.partition(b"?")[0]) if verb == b"GET" else None
        if page is None:
            page = 404, "text/plain", f"only GET {self._here} is here\n".encode()
        status, kind, body = page
        head = (
            f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body
