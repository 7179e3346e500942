"""Read views for management: values of one moment that nobody can change anything with. Ages in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.nfp.names import Dialect
from broker.nfp.targets import Target


class WorkerView(NamedTuple):
    """A worker the broker knows at present: there, or waited for."""

    name: str
    service: str
    status: str
    """``alive``; ``lost`` (connection broken, within its grace); ``expected`` (after a restart, not back yet)."""
    dialect: Dialect
    key: str
    """Z85, "" without CURVE."""
    holder: str
    """"" while expected."""
    features: frozenset[str]
    credits: int
    busy: int
    """Credits in use."""
    jobs: tuple[str, ...]
    """Uuids it was given and has not finished."""
    waiting: int
    """Requests that wait for this worker by name."""
    holdtime_s: float
    """Until it counts as dead if nothing comes."""
    alive_s: float
    """Since it registered, 0.0 while expected."""
    keepalives_sent: int
    keepalives_received: int
    ended: Mapping[str, int]
    """How many parts of jobs ended at it since the broker's start: done, failed, expired, cancelled (``outcome``)."""
    resources: tuple[str, ...]
    """As its OPEN named them."""
    tasks: tuple[str, ...]
    """As its OPEN named them."""


class ServiceView(NamedTuple):
    """A service with workers or waiting requests."""

    name: str
    workers: tuple[str, ...]
    alive: int
    idle: int
    """Workers with a free credit."""
    queued: int
    """Requests for any of its workers that wait."""
    running: int


class ClientView(NamedTuple):
    """Somebody who is there, or has submitted a job that is remembered."""

    name: str
    holder: str
    dialect: Dialect
    present: bool
    pushes: bool
    """Results and events are sent unasked."""
    jobs: int
    """Open ones."""
    kept: int
    """Closed ones that are remembered."""
    seen_s: float
    """Since its last request; -1.0 when not since the broker started."""


class SlotView(NamedTuple):
    """One worker's part of a job."""

    slot: str
    """Name of the worker; "" for any of the service."""
    worker: str
    """Who has it, had it last, or finished it; "" when nobody yet."""
    attempt: int
    state: str
    """waiting, dispatched, accepted or final."""
    status: int
    """Of the recorded result, 0 before."""
    size: int
    """Bytes of the recorded result."""
    ended: str = ""
    """How it ended: done, failed, expired or cancelled (``outcome``); "" before."""


class JobView(NamedTuple):
    """A job, open or remembered."""

    uuid: str
    service: str
    task: str
    target: Target
    holder: str
    userid: int
    client: str
    state: str
    """open, done, failed, expired or cancelled (``outcome``)."""
    age_s: float
    """Since it was submitted."""
    remaining_s: float
    """Until its deadline (open) or until it is forgotten."""
    asked: tuple[str, ...]
    """Workers that wait for input from the client."""
    slots: tuple[SlotView, ...]
    took_s: float = 0.0
    """From its submission to its end, or until now."""
    body: bytes = b""
    """As it was submitted; b"" of a closed job when it is longer than ``model.BODY_KEPT_BYTES``."""


class ResultView(NamedTuple):
    """The recorded result of one worker."""

    worker: str
    status: int
    body: bytes
