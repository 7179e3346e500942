"""How much one Handle may hold: every queue between the link and its consumers has an end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one handle may hold; none can be switched off."""

    pending_calls: int = 1 << 20
    """Calls that wait for responses, abandoned ones included; beyond it EAGAIN."""
    stream_msgs: int = 4096
    """Responses one stream buffers; beyond it the stream is cancelled and raises Overrun."""
    stream_bytes: int = 64 << 20
    """The same in bytes."""
    event_msgs: int = 16384
    """Events one subscription buffers; what comes while it is full is lost to it and counted."""
    event_bytes: int = 64 << 20
    """The same in bytes."""
    service_tasks: int = 1024
    """Requests one service handles at a time."""
    service_waiting: int = 65536
    """Requests that wait behind those; beyond it EAGAIN."""
    drain_s: float = 2.0
    """How long leaving waits, in seconds, for a slow broker to take what was sent."""
