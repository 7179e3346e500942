"""What happens to jobs, as events ``nfp.job.UUID.KIND`` on the Flux broker.

Each is private and stamped with the userid whose job it is, so that owners and that user receive it and nobody else,
and with the role owner, which says that it comes from here: nobody else may publish such a topic (RFC 12, "Event
Privacy"; an owner's link may pass such a stamp). A job of a key without userid, or of nobody, is told to owners only.
The payload is what subscribers on the NFP side read (``management.event_bus.told``). Streams and what is no
job's are not published.

Never waits (``client.bridge.Publisher``).
"""

from __future__ import annotations

import time
from typing import Final

from broker.client.bridge import Publisher, word_of
from broker.identity import USERID_UNKNOWN, Role
from broker.nfp.contract import JobEvent
from broker.nfp.management.event_bus import numbered, told
from broker.nfp.principal import recipient
from broker.wire.message import PRIVATE

PREFIX: Final = "nfp.job."
_SILENT: Final = frozenset({"stream", "published"})


class EventPublisher(Publisher):
    """Publishes job events.

    Args:
        epoch: the NFP broker's incarnation, told in each event.
    """

    def __init__(self, epoch: str) -> None:
        super().__init__()
        self._epoch = epoch

    def publish_event(self, happening: JobEvent, sequence: int) -> None:
        """Publish one event."""
        if happening.kind in _SILENT or not self.has_room():
            return
        userid = recipient(happening.userid)  # where that is None, the link's own, the owner's, is filled in
        self.publish(
            topic_of(happening),
            told(numbered(sequence, happening, time.time()), self._epoch),
            flags=PRIVATE,
            userid=USERID_UNKNOWN if userid is None else userid,
            rolemask=0 if userid is None else int(Role.OWNER | Role.USER),
        )


def topic_of(happening: JobEvent) -> str:
    """The topic; any text may be a job id.

    >>> topic_of(JobEvent("closed", "a.b c", "s", "t", "h", 1))
    'nfp.job.a%2Eb%20c.closed'
    """
    return f"{PREFIX}{word_of(happening.uuid)}.{happening.kind}"
