"""Open calls that their matchtag does not tell apart: matchtag 0, or one that is used twice (RFC 6, "Matchtags").

Deployed software sends both. Calls with matchtag 0 may be answered any number of times while both ends live; calls
that share a matchtag are answered in any order, each once.
"""

from __future__ import annotations

from typing import Final

from broker.routing.port import Decision, Port, Repeat

NO_TAG: Final = b"\0\0\0\0"
REPEATS_MAX: Final = 256
"""Open calls of one sender that may share a matchtag."""


def track(port: Port, decision: Decision, front: bytes, tag: bytes) -> str:
    """Keep an open call with matchtag 0, with one that is in use, or beyond the cap: "", or why it is refused."""
    if len(port.pending) + len(port.untagged) >= port.pending_max:
        return f"more than {port.pending_max} calls are open on this link"
    if tag == NO_TAG:
        port.untagged.setdefault(front, {})[decision.target] = (decision, True)
        return ""
    # RFC 6 forbids it; deployed software answers both, so the later call waits behind the first
    earlier = port.pending[front + tag]
    waiting = earlier.waiting if isinstance(earlier, Repeat) else [earlier]
    if len(waiting) >= REPEATS_MAX:
        return f"matchtag is in use by {len(waiting)} open calls"
    port.pending[front + tag] = Repeat([*waiting, decision])
    return ""


def answered(origin: Port, port: Port, key: bytes, rest: bytes, failed: bool) -> Decision | None:
    """The call of ``origin`` that a response of ``port`` answers; ``key`` is the rest of its stack and its matchtag."""
    if key[-4:] == NO_TAG:
        return origin.untagged_call(rest, port, failed)
    entry = origin.pending.get(key)
    if not isinstance(entry, Repeat):
        return None
    found = entry.take(port, failed)
    if not entry.waiting:
        del origin.pending[key]
    return found
