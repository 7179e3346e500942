"""Counts as Prometheus text, and a small listener for scrapers and probes (a UNIX socket, or HTTP).

Names follow the Prometheus conventions: base units, ``_total`` on counters. The text is made when asked for; the
corridor only counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.errors import ConfigError
from broker.node import probes
from broker.node.context import traffic, users
from broker.routing.port import KIND_NAMES, OWN, Port

if TYPE_CHECKING:
    from broker.node.assembly import Node
    from broker.node.capture import Capture

log = logging.getLogger("headgate")

REQUEST_MAX_BYTES = 8192
REQUEST_TIMEOUT_S = 5.0
"""A scraper sends a few hundred bytes at once; whoever does not is cut off."""

REQUESTS_MAX: Final = 32
"""So many at a time: descriptors are for the broker's peers. For one more the oldest ends: honest ones are brief."""
USERS_SHOWN = 10
"""Each is a time series of its own: `headgate stats --users` has all of them."""

PHRASES: Final = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}
Sample = tuple[str, str, str, list[tuple[dict[str, str], float]]]
"""(name, type, help, [(labels, value)])"""


def render(samples: Iterable[Sample]) -> str:
    """Prometheus text exposition format 0.0.4."""
    lines: list[str] = []
    for name, kind, text, values in samples:
        lines += [f"# HELP headgate_{name} {text}", f"# TYPE headgate_{name} {kind}"]
        for labels, value in values:
            inner = ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items())
            lines.append(
                f"headgate_{name}{{{inner}}} {value:.15g}" if inner else f"headgate_{name} {value:.15g}"
            )
    return "\n".join(lines) + "\n"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def samples(node: Node) -> list[Sample]:
    """What one broker has to tell."""
    counts = traffic(node.broker)
    router = node.broker.router
    types = ("request", "response", "event", "control")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    attached = [port for port in router.ports if port.link is not None]
    return [
        (
            "info",
            "gauge",
            "Constant 1.",
            [({"rank": str(router.rank), "size": str(router.topology.size)}, 1.0)],
        ),
        ("state", "gauge", "Lifecycle state number; 5 is run.", [({}, float(node.lifecycle.number))]),
        (
            "received_messages_total",
            "counter",
            "Messages received.",
            [({"type": t}, counts["rx"][t]) for t in types],
        ),
        (
            "sent_messages_total",
            "counter",
            "Messages passed on or made here, events once per receiver.",
            [({"type": t}, counts["tx"][t]) for t in types],
        ),
        (
            "dropped_messages_total",
            "counter",
            "Messages that went nowhere.",
            [({"reason": reason}, float(count)) for reason, count in counts["drops"].items()]
            or [({"reason": ""}, 0.0)],
        ),
        ("pending_calls", "gauge", "Requests not answered yet.", [({}, float(counts["pending"]))]),
        ("links", "gauge", "Attached links.", _by_kind(attached)),
        ("outbox_bytes", "gauge", "Bytes that wait for slow readers.", [({}, float(counts["outbox_bytes"]))]),
        ("event_sequence", "counter", "Last event sequence.", [({}, float(router.events.sequence))]),
        (
            "event_gaps_total",
            "counter",
            "Times that event numbers were missing.",
            [({}, float(node.overlay.event_gaps))],
        ),
        (
            "missed_events_total",
            "counter",
            "Event numbers that were missing.",
            [({}, float(node.overlay.events_missed))],
        ),
        *user_samples(node),
        ("cpu_seconds_total", "counter", "CPU time of the process.", [({}, usage.ru_utime + usage.ru_stime)]),
        ("max_resident_bytes", "gauge", "Largest resident set size.", [({}, usage.ru_maxrss * 1024.0)]),
        *(journal_samples(node.capture) if node.capture is not None else ()),
        *(sample for more in node.more_samples for sample in more()),
    ]


def user_samples(node: Node) -> list[Sample]:
    """What the clients of the busiest users hold, over all links of each."""
    shown = users(node.broker)["users"][:USERS_SHOWN]
    kinds = (
        ("links", "Links of one user; the ten whose clients sent most are shown.", "links"),
        ("pending_calls", "Requests of one user that are not answered yet.", "pending"),
        ("services", "Services that one user registered.", "services"),
        ("subscriptions", "Prefixes that one user subscribed to, each counted once a link.", "subscriptions"),
        ("outbox_bytes", "Bytes that wait until one user reads.", "outbox_bytes"),
        ("received_messages", "Messages that came by the links one user has now.", "received"),
    )
    return [
        (
            f"user_{name}",
            "gauge",
            text,
            [(_whose(user), float(user[key])) for user in shown],
        )
        for name, text, key in kinds
    ]


def _whose(user: Mapping[str, Any]) -> dict[str, str]:
    return {"userid": str(user["userid"]), "owner": "yes" if user["owner"] else "no"}


def journal_samples(capture: Capture) -> list[Sample]:
    """What the journal has to tell; a broker without one says nothing of it."""
    figures = capture.figures
    reason = capture.state.partition(": ")[2]
    counters = (
        ("handed_records", "Records handed to the journal.", figures.handed),
        ("written_records", "Records on disk.", figures.written),
        ("shed_records", "Records left out because the disk was too slow, or capture off.", figures.shed),
        ("lost_records", "Records that a writer had when it died, or when the disk was full.", figures.lost),
        ("writer_restarts", "Writers started in place of dead ones.", figures.restarts),
    )
    gauges = (
        ("waiting_bytes", "Bytes that wait for the writer.", figures.waiting_bytes),
        ("disk_bytes", "Bytes of its segments on disk.", figures.disk_bytes),
    )
    found: list[Sample] = [
        ("journal_recording", "gauge", "1 while it records.", [({"off": reason}, float(capture.on))])
    ]
    for name, text, count in counters:
        found.append((f"journal_{name}_total", "counter", text, [({}, float(count))]))
    for name, text, size in gauges:
        found.append((f"journal_{name}", "gauge", text, [({}, float(size))]))
    return found


def _by_kind(ports: Iterable[Port]) -> list[tuple[dict[str, str], float]]:
    found = [port.kind for port in ports]
    return [({"kind": KIND_NAMES[kind]}, float(found.count(kind))) for kind in range(OWN)]


class MetricsListener:
    """Answers ``GET /metrics`` with the text, ``/livez`` and ``/readyz`` as ``probes`` says, anything else with 404.

    Args:
        node: whose counts. place: ``unix:///PATH`` or ``http://HOST:PORT``.
    """

    def __init__(self, node: Node, place: str) -> None:
        self._node = node
        self._place = place
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the place cannot be used.
        """
        scheme, _, rest = self._place.partition("://")
        try:
            if scheme == "unix":
                self._server = await asyncio.start_unix_server(self._serve, rest, limit=REQUEST_MAX_BYTES)
                os.chmod(rest, 0o600)
            else:
                host, _, port = rest.rstrip("/").rpartition(":")
                self._server = await asyncio.start_server(
                    self._serve, host.strip("[]"), int(port), limit=REQUEST_MAX_BYTES
                )
        except (OSError, ValueError) as error:
            raise ConfigError(f"broker.metrics_listen {self._place}: {error}") from error

    async def stop(self) -> None:
        """Close the socket, and who still asks there."""
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
                writer.write(self._answer(*head.split(b" ", 2)[:2]))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("metrics: %s", error)
            writer.transport.abort()  # what it did not read would keep it open
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _answer(self, verb: bytes, target: bytes = b"") -> bytes:
        path = target.partition(b"?")[0]
        page = probes.PAGES.get(path)
        if verb != b"GET" or (page is None and path != b"/metrics"):
            status, kind, body = 404, "text/plain", b"only GET /metrics, /livez and /readyz are here\n"
        elif page is not None:
            status, kind, body = page(self._node)
        else:
            status, kind, body = 200, "text/plain; version=0.0.4", render(samples(self._node)).encode()
        head = (
            f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body
