"""Every state that a job, its parts, the attempts at them and workers may be in, and what leads from each to which.

A table for each kind of thing, as ``states`` reads them. ``STATES.md`` draws them, and beside them that of a job at its
worker (``worker.run``).

A *job* is open until all its parts are final, and closed then. What takes room of a closed one is stored, and is in
memory only while it is read.

A *part* waits, is given to a worker, and is final once its one result is recorded. A worker gives it back (``return``)
when it has it no more and it may be run again.

An *attempt* is what one worker has to do with a part. At most one of them is current: the part is given then. Others
may still bring the result, or have to stop::

    released   the worker holds nothing for it: not begun, or over; the result it may bring still counts
    probed     GET was sent: does it have the job from an earlier attempt? POST follows if not
    sent       POST was sent; or the worker, or the store after a restart, says that it has the job (``adopt``)
    accepted   the worker has it, by whatever it said
    ready      the worker has said that its result is there (``announce``); no slot of it is taken any more
    stopping   the part is not this worker's any more (``cancel``); a slot is taken until it says that it is done

``finish``: its result came, whether it is the one that counts or not. ``forget``: the worker does not know the job.
``lose``: the worker is lost, or does not answer. ``unsent``: what was to be sent found no room, as if it had never been
given.

A *worker* is expected when the store knows it and it has not come since the broker's start, lost while its connection
is broken and it may be back, and dead (``bury``) when it is waited for no longer.
"""

# compiled: mypyc

from __future__ import annotations

from typing import Final, Literal

JobState = Literal["open", "closed", "stored"]
JobStep = Literal["close", "store", "read"]

JOB: Final[dict[JobState, dict[JobStep, JobState]]] = {
    "open": {"close": "closed"},
    "closed": {"store": "stored"},
    "stored": {"read": "closed"},
}

PartState = Literal["waiting", "given", "final"]
PartStep = Literal["give", "return", "settle"]

PART: Final[dict[PartState, dict[PartStep, PartState]]] = {
    "waiting": {"give": "given", "settle": "final"},
    "given": {"return": "waiting", "settle": "final"},
    "final": {},
}

AttemptState = Literal["released", "probed", "sent", "accepted", "ready", "stopping"]
AttemptStep = Literal[
    "probe", "post", "adopt", "accept", "announce", "finish", "forget", "lose", "cancel", "unsent"
]

_OVER: Final[dict[AttemptStep, AttemptState]] = {
    "finish": "released",
    "forget": "released",
    "lose": "released",
}

ATTEMPT: Final[dict[AttemptState, dict[AttemptStep, AttemptState]]] = {
    "released": {
        "probe": "probed",
        "post": "sent",
        "adopt": "sent",
        "finish": "released",
        "forget": "released",
        "cancel": "stopping",
    },
    "probed": {"post": "sent", "accept": "accepted", "cancel": "stopping", "unsent": "released", **_OVER},
    "sent": {"accept": "accepted", "cancel": "stopping", "unsent": "released", **_OVER},
    "accepted": {"accept": "accepted", "announce": "ready", "cancel": "stopping", **_OVER},
    "ready": {"accept": "ready", "announce": "ready", "cancel": "released", **_OVER},
    "stopping": {"cancel": "stopping", **_OVER},
}

CURRENT: Final = frozenset({"probed", "sent", "accepted", "ready"})
"""The part is this worker's."""
ENTERED: Final = frozenset({"accepted", "ready"})
"""The task may have begun, or is done."""
TAKES_SLOT: Final = frozenset({"probed", "sent", "accepted", "stopping"})
"""One of the worker's credits is in use for it."""

WorkerState = Literal["expected", "alive", "lost", "dead"]
WorkerStep = Literal["arrive", "leave", "bury"]

WORKER: Final[dict[WorkerState, dict[WorkerStep, WorkerState]]] = {
    "expected": {"arrive": "alive", "leave": "lost", "bury": "dead"},
    "alive": {"arrive": "alive", "leave": "lost"},
    "lost": {"arrive": "alive", "bury": "dead"},
    "dead": {},
}

TABLES: Final = {"job": JOB, "part": PART, "attempt": ATTEMPT, "worker": WORKER}
