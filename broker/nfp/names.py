r"""Words of the protocol: headers, commands, status codes, service names (NFP, "NFP messages" and "Status Frames").

Two dialects write the command frame differently: the text uses one byte (``b"\\x04"``), deployed NorFab four
ASCII characters (``b"0x04"``; its PUT is spelt ``0x10`` and its MMI ``0x11``).
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final


class Sender(bytes, Enum):
    """Frame 1: who sends."""

    CLIENT = b"NFPC01"
    WORKER = b"NFPW01"
    BROKER = b"NFPB01"


class Dialect(Enum):
    """How a peer writes; a message's dialect is known by the length of its command frame."""

    SEED = "seed"
    """One-byte commands, statuses with text, the seven codes of the text, one RESPONSE for each command."""
    NORFAB = "norfab"
    """ASCII commands and bare three-digit statuses, as NorFab 0.25 and our own peers write them."""


class Command(IntEnum):
    """Frame 2; the last three exist in deployed NorFab only."""

    OPEN = 0
    READY = 1
    KEEPALIVE = 2
    DISCONNECT = 3
    POST = 4
    RESPONSE = 5
    GET = 6
    DELETE = 7
    EVENT = 8
    STREAM = 9
    PUT = 10
    MMI = 11


class Code(IntEnum):
    """Status codes; those outside ``SEED_CODES`` are of deployed NorFab."""

    OK = 200
    CREATED = 201
    """A worker has stored the job."""
    ACCEPTED = 202
    WAITING_INPUT = 102
    PENDING = 300
    UNKNOWN = 400
    NOT_FOUND = 404
    TIMEOUT = 408
    EXPECT_FAILED = 417
    ERROR = 500


SEED_CODES: Final = frozenset({200, 202, 300, 400, 408, 417, 500})
"""All a peer of the text's dialect may be sent (NFP, "Status Frames")."""
FINAL_CODES: Final = frozenset({200, 400, 404, 408, 417, 500})
"""Codes of a worker's RESPONSE after which nothing more comes; 404 means that the worker does not know the job."""

STATUS_TEXT: Final = {
    102: "WAITING CLIENT INPUT",
    200: "OK",
    201: "CREATED",
    202: "ACCEPTED",
    300: "PENDING",
    400: "UNKNOWN",
    404: "NOT FOUND",
    408: "REQUEST TIMEOUT",
    417: "EXPECT FAILED",
    500: "ERROR",
}

MMI_BROKER: Final = "mmi.service.broker"
MMI_WORKER: Final = "mmi.service.worker"
SID: Final = "sid.service.broker"
FSS: Final = "fss.service.broker"
FILESHARING: Final = "filesharing"
"""The file service as deployed NorFab names it; an ordinary service with workers."""
EVENTS: Final = "events.service.broker"
"""Ours, for the text's NFP/Broker-PUB: subscriptions, and what has happened."""
JOBS: Final = "jobs.service.broker"
"""Ours: list, show and count jobs of the broker's store."""
INTERNAL: Final = frozenset({MMI_BROKER, SID, EVENTS, JOBS})
"""Services that the broker answers itself, at once; no worker may offer them."""
ASKED_BY_MMI: Final = INTERNAL | {MMI_WORKER}
"""Services that take no jobs: one question, one answer, by MMI; the text, which has no such command, uses POST."""

CLIENT_OF_WORKER: Final = "-NFPClient"
"""What deployed NorFab appends to a worker's name for the client it has; ours do the same."""

NAME_BYTES_MAX: Final = 255
"""Names of peers are ZeroMQ identities; service names and job ids are held to the same size."""
