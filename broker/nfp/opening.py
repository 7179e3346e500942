"""Bodies of OPEN: what worker, client and broker tell each other at first (NFP, "OPEN" leaves the body opaque; pure).

All three are JSON objects whose members may each be missing: the defaults here are what is assumed then. Reading never
raises; a member of another type counts as not said, a bad entry of a list or table is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from broker.nesting import read_json
from broker.nfp.frames import Body
from broker.nfp.names import NAME_BYTES_MAX

DIALECT: Final = "headgate/1"
"""What our own peers call their way of speaking; for people and later versions."""
TASKS_MAX: Final = 4096
RESOURCES_MAX: Final = 65_536
"""Tens of thousands of resources are what the text expects in all; one worker may hold them."""
JOBS_MAX: Final = 32_768
"""Our workers hold 10 000 unfinished jobs and as many results at most; what is left out would be given to others."""
NUMBER_MAX: Final = 2**31 - 1


class HeldJob(NamedTuple):
    """A job that a worker holds."""

    attempt: int
    state: str
    """waiting (its task has not begun), running or done."""


class WorkerOpen(NamedTuple):
    """From a worker, before READY; its ``name`` and ``dialect`` are for people who read the log of a socket."""

    features: frozenset[str] = frozenset()
    credits: int = 0
    """Jobs it takes at a time; 0: the broker's default."""
    resources: tuple[str, ...] = ()
    """What it manages; a target may name them."""
    tasks: Mapping[str, bool | None] = {}
    """Its tasks: may they be run twice? None: not said."""
    jobs: Mapping[str, HeldJob] = {}
    """By uuid, what it holds from an earlier connection; with the feature ``jobs`` this list is complete."""


class BrokerOpen(NamedTuple):
    """The broker's answer to either."""

    broker: str = ""
    version: str = ""
    keepalive_ms: int = 2500
    multiplier: int = 6
    """Intervals of silence after which the other side is dead."""
    features: frozenset[str] = frozenset()
    """Those asked for that the broker grants."""
    epoch: str = ""
    """Another one after the store was lost or replaced: jobs of before are then unknown here."""
    message_bytes: int = 0
    """The largest frame that it takes: it ends the connection of who sends a larger one. 0: it does not say."""
    refused: str = ""
    """Why whoever sent the OPEN is not served; the connection ends then."""


def read_worker(body: Body) -> WorkerOpen:
    """A worker's OPEN.

    >>> read_worker(b'{"credits":2,"jobs":{"u":[1,"running"],"v":3}}').jobs
    {'u': HeldJob(attempt=1, state='running')}
    """
    said = read_object(body)
    return WorkerOpen(**_plain_members(WorkerOpen, said))._replace(
        resources=tuple(_names(said.get("resources"), RESOURCES_MAX)),
        tasks={name: _safe(about) for name, about in _table(said.get("tasks"), TASKS_MAX)},
        jobs=_jobs(said.get("jobs")),
    )


def read_client(body: Body) -> frozenset[str] | None:
    """The features that a client's OPEN asks for; None: it names none."""
    asked = read_object(body).get("features")
    return _texts(asked) if isinstance(asked, list) else None


def broker_of(said: Mapping[str, Any]) -> BrokerOpen:
    """The broker's OPEN, of which the JSON was read.

    >>> broker_of({"keepalive_ms": 300, "multiplier": "?"})[2:4]
    (300, 6)
    """
    return BrokerOpen(**_plain_members(BrokerOpen, said))


def write(opening: BrokerOpen) -> bytes:
    """The body of the broker's OPEN, which ``broker_of`` reads; empty members are left out."""
    said = {key: value for key, value in opening._asdict().items() if value}
    return msgspec.json.encode(said, order="deterministic")


def read_any(body: Body, unread: Any = None) -> Any:
    """What ``body`` says as JSON; ``unread`` when it is empty, no JSON, or nested deeper than can be read.

    >>> read_any(b"[1]"), read_any(b"plain", "?"), read_any(b"null", "?")
    ([1], '?', None)
    """
    try:
        return read_json(body)
    except (msgspec.MsgspecError, UnicodeError):
        return unread


def read_object(body: Body) -> dict[str, Any]:
    """The JSON object that ``body`` is; {} when it is anything else."""
    said = read_any(body)
    return said if isinstance(said, dict) else {}


def _text(said: Any) -> str:
    return said if isinstance(said, str) and len(said) <= NAME_BYTES_MAX else ""


def _number(said: Any) -> int:
    fits = isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= NUMBER_MAX
    return said if fits else 0


def _names(said: Any, most: int) -> list[str]:
    return [name for name in said[:most] if _text(name)] if isinstance(said, list) else []


def _texts(said: Any) -> frozenset[str]:
    return frozenset(_names(said, NAME_BYTES_MAX))


def _table(said: Any, most: int) -> list[tuple[str, Any]]:
    return (
        [(key, value) for key, value in said.items() if _text(key)][:most] if isinstance(said, dict) else []
    )


def _safe(about: Any) -> bool | None:
    safe = about.get("idempotent") if isinstance(about, dict) else None
    return safe if isinstance(safe, bool) else None


def _jobs(said: Any) -> dict[str, HeldJob]:
    held = {uuid: _held(about) for uuid, about in _table(said, JOBS_MAX)}
    return {uuid: job for uuid, job in held.items() if job is not None}


def _held(about: Any) -> HeldJob | None:
    if not isinstance(about, list) or len(about) != 2 or about[1] not in ("waiting", "running", "done"):
        return None
    attempt = about[0]
    return HeldJob(attempt, about[1]) if type(attempt) is int and 0 <= attempt <= NUMBER_MAX else None


_READERS: Final[Mapping[type, Callable[[Any], Any]]] = {str: _text, int: _number, frozenset: _texts}
"""By the type of a member's default; lists and tables are read by themselves."""


def _plain_members(shape: type[WorkerOpen | BrokerOpen], said: Mapping[str, Any]) -> dict[str, Any]:
    """What ``said`` has of the members of ``shape``; what is odd, or 0, is the default."""
    return {
        name: read(said.get(name)) or usual
        for name, usual in shape._field_defaults.items()
        if (read := _READERS.get(type(usual))) is not None
    }
