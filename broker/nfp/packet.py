"""One NFP message as its parts, and what is raised for frames that are none (pure)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker.errors import DecodeError
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.targets import Target

Body = Any
"""bytes or memoryview: anything with the buffer protocol."""

SWAPPED: Final = "swapped"
"""DISCONNECT as NorFab's broker writes it: service and command exchanged. It is understood, never sent by us."""
NO_UUID_STATUS: Final = "no-uuid-status"
"""NorFab's broker to a client whose command it does not know: RESPONSE H c service text."""


class InvalidPacket(DecodeError):
    """Frames that are no NFP message.

    ``kind`` is one of short, frame0, header, command, role, arity, encoding, status, service, target, uuid, client.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


class Packet(msgspec.Struct, eq=False, gc=False):
    """One NFP message; a Struct because a broker makes a dozen for each job, and those cost a fifth of a class.

    Attributes:
        sender: who sends it (frame 1).
        command: frame 2.
        dialect: how it is written.
        service: "" for OPEN and in the form with an address.
        target: of requests without an address, else None.
        client: the address, None in the form without one.
        uuid: the job, or an event's topic; "" for presence commands.
        status: three digits, 0 where there is none.
        status_text: what follows them.
        body: a buffer; None for READY, KEEPALIVE and a DISCONNECT without one.
        sequence: of an event from a subscription, None elsewhere.
        quirk: "", or in which way deployed NorFab wrote it wrongly: ``SWAPPED`` or ``NO_UUID_STATUS``.
    """

    sender: Sender
    command: Command
    dialect: Dialect = Dialect.NORFAB
    service: str = ""
    target: Target | None = None
    client: bytes | None = None
    uuid: str = ""
    status: int = 0
    status_text: str = ""
    body: Body = None
    sequence: int | None = None
    quirk: str = ""

    @property
    def data(self) -> bytes:
        """The body as bytes; b"" when there is none. Copies a body that is still a frame."""
        return b"" if self.body is None else bytes(self.body)

    def __repr__(self) -> str:
        about = f" {self.uuid}" if self.uuid else ""
        code = f" {self.status}" if self.status else ""
        return (
            f"<{self.sender.name.lower()} {self.command.name}{about} {self.service or self.client!r}{code}>"
        )
