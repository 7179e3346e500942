"""Asks a parent broker for the version it announces, without joining it.

A hello that claims version 0.0.0 is refused by every parent, ours and deployed ones, with a text that names both
versions. A deployed parent forgets the rank's present child when it is greeted, so this is only for a host whose own
broker is not running.
"""

from __future__ import annotations

import asyncio
import re
import uuid

from broker.errors import LinkError
from broker.node.overlay import hello
from broker.node.overlay.control import Status
from broker.transport.link import Link
from broker.wire.message import Message

_SERVER = re.compile(r"mismatched with server \((\d+\.\d+\.\d+)\)")
ANSWER_S = 3.0
"""A parent that still waits for its own parent keeps a hello unanswered: then nothing is learnt."""


class _Listener:
    """Waits for the answer to one hello."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[hello.Answer | None] = asyncio.get_running_loop().create_future()

    def received(self, link: Link, messages: list[Message]) -> None:
        for message in messages:
            if hello.is_answer(message) and not self.answer.done():
                self.answer.set_result(hello.read_answer(message))

    def link_ended(self, link: Link, error: LinkError) -> None:
        if not self.answer.done():
            self.answer.set_result(None)

    def link_choked(self, link: Link, choked: bool) -> None:
        """One small message does not choke a link."""


async def announced_version(link: Link, rank: int) -> str | None:
    """The version that the parent at the other end of ``link`` announces, asked as its child ``rank``.

    None when it did not say: another reason to refuse came first, or no answer came in time. The link is of no use
    afterwards.
    """
    listener = _Listener()
    link.start(listener)
    link.send(hello.encode(hello.Hello(rank, 0, str(uuid.uuid4()), Status.FULL)))
    link.flush()
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await listener.answer
    except TimeoutError:
        return None
    found = _SERVER.search(answer.text) if answer is not None else None
    return found.group(1) if found else None
