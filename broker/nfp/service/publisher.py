"""What happens to jobs, as events ``nfp.job.UUID.KIND`` on the Flux broker.

Each is private and stamped with the userid whose job it is, so that owners and that user receive it and nobody else,
and with the role owner, which says that it comes from here: nobody else may publish such a topic (RFC 12, "Event
Privacy"; an owner's link may pass such a stamp). A job of a key without userid, or of nobody, is told to owners only.
The payload is what subscribers on the NFP side read (``management.replay_buffer.told``). Streams and what is no
job's are not published.

Never waits: while the link is choked, events are dropped and counted; the next one says how many in ``lost``.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, Final
from urllib.parse import quote

from broker.client import Handle
from broker.identity import USERID_UNKNOWN, Role
from broker.nfp.contract import JobEvent
from broker.nfp.management.replay_buffer import numbered, told
from broker.nfp.principal import recipient
from broker.wire.message import PRIVATE, event
from broker.wire.payload import encode_json

PREFIX: Final = "nfp.job."
UUID_CHARS_MAX: Final = 128
"""A longer job id stands in a topic as its digest: any text may be one."""
_SILENT: Final = frozenset({"stream", "published"})


class EventPublisher:
    """Publishes job events.

    Args:
        epoch: the NFP broker's incarnation, told in each event.

    Attributes:
        handle: the link to the Flux broker, None while there is none: events are then dropped, like those of a choked
            one.
        sent, dropped: counts.
    """

    def __init__(self, epoch: str) -> None:
        self.handle: Handle | None = None
        self.sent = 0
        self.dropped = 0
        self._untold = 0
        self._epoch = epoch

    def happened(self, happening: JobEvent, sequence: int) -> None:
        """Publish one event."""
        if happening.kind in _SILENT:
            return
        handle = self.handle
        if handle is None or handle.ended is not None or handle.link.outbox.choked:
            self.dropped += 1
            self._untold += 1
            return
        said: dict[str, Any] = told(numbered(sequence, happening, time.time()), self._epoch)
        if self._untold:
            said["lost"], self._untold = self._untold, 0
        userid = recipient(happening.userid)  # where that is None, the link's own, the owner's, is filled in
        handle.send(
            event(
                topic_of(happening),
                encode_json(said),
                flags=PRIVATE,
                userid=USERID_UNKNOWN if userid is None else userid,
                rolemask=0 if userid is None else int(Role.OWNER | Role.USER),
            )
        )
        self.sent += 1


def topic_of(happening: JobEvent) -> str:
    """The topic; what a topic's word cannot have is percent-encoded.

    >>> topic_of(JobEvent("closed", "a.b c", "s", "t", "h", 1))
    'nfp.job.a%2Eb%20c.closed'
    """
    word = quote(happening.uuid, safe="").replace(".", "%2E")
    if len(word) > UUID_CHARS_MAX:
        word = hashlib.sha256(happening.uuid.encode()).hexdigest()
    return f"{PREFIX}{word}.{happening.kind}"
