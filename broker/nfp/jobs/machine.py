"""Every state that a job, its parts, the attempts at them and workers may be in, and what leads from each to which.

A table for each kind of thing, as ``states`` reads them. ``STATES.md`` draws them, and beside them that of a job at its
worker (``worker.run``).

A *job* is open until all its parts are final, and closed then. What takes room of a closed one is stored, and is in
memory only while it is read.

A *part* waits, is given to a worker, and is final once its one result is recorded. A worker gives it back (RETURN) when
it has it no more and it may be run again.

An *attempt* is what one worker has to do with a part. At most one of them is current: the part is given then. Others
may still bring the result, or have to stop::

    released   the worker holds nothing for it: not begun, or over; the result it may bring still counts
    probed     GET was sent: does it have the job from an earlier attempt? POST follows if not
    sent       POST was sent; or the worker, or the store after a restart, says that it has the job (ADOPT)
    accepted   the worker has it, by whatever it said
    ready      the worker has said that its result is there (ANNOUNCE); no slot of it is taken any more
    stopping   the part is not this worker's any more (CANCEL); a slot is taken until it says that it is done

FINISH: its result came, whether it is the one that counts or not. FORGET: the worker does not know the job. LOSE: the
worker is lost, or does not answer. UNSENT: what was to be sent found no room, as if it had never been given.

A *worker* is expected when the store knows it and it has not come since the broker's start, lost while its connection
is broken and it may be back, and dead (BURY) when it is waited for no longer.
"""

# compiled: mypyc

from __future__ import annotations

from typing import Final

from broker.nfp.states import Table

OPEN: Final = "open"
CLOSED: Final = "closed"
STORED: Final = "stored"

CLOSE: Final = "close"
STORE: Final = "store"
READ: Final = "read"

JOB: Final[Table] = {OPEN: {CLOSE: CLOSED}, CLOSED: {STORE: STORED}, STORED: {READ: CLOSED}}

WAITING: Final = "waiting"
GIVEN: Final = "given"
FINAL: Final = "final"

GIVE: Final = "give"
RETURN: Final = "return"
SETTLE: Final = "settle"

PART: Final[Table] = {
    WAITING: {GIVE: GIVEN, SETTLE: FINAL},
    GIVEN: {RETURN: WAITING, SETTLE: FINAL},
    FINAL: {},
}

RELEASED: Final = "released"
PROBED: Final = "probed"
SENT: Final = "sent"
ACCEPTED: Final = "accepted"
READY: Final = "ready"
STOPPING: Final = "stopping"

PROBE: Final = "probe"
POST: Final = "post"
ADOPT: Final = "adopt"
ACCEPT: Final = "accept"
ANNOUNCE: Final = "announce"
FINISH: Final = "finish"
FORGET: Final = "forget"
LOSE: Final = "lose"
CANCEL: Final = "cancel"
UNSENT: Final = "unsent"

_OVER: Final = {FINISH: RELEASED, FORGET: RELEASED, LOSE: RELEASED}

ATTEMPT: Final[Table] = {
    RELEASED: {PROBE: PROBED, POST: SENT, ADOPT: SENT, FINISH: RELEASED, FORGET: RELEASED, CANCEL: STOPPING},
    PROBED: {POST: SENT, ACCEPT: ACCEPTED, CANCEL: STOPPING, UNSENT: RELEASED, **_OVER},
    SENT: {ACCEPT: ACCEPTED, CANCEL: STOPPING, UNSENT: RELEASED, **_OVER},
    ACCEPTED: {ACCEPT: ACCEPTED, ANNOUNCE: READY, CANCEL: STOPPING, **_OVER},
    READY: {ACCEPT: READY, ANNOUNCE: READY, CANCEL: RELEASED, **_OVER},
    STOPPING: {CANCEL: STOPPING, **_OVER},
}

CURRENT: Final = frozenset({PROBED, SENT, ACCEPTED, READY})
"""The part is this worker's."""
ENTERED: Final = frozenset({ACCEPTED, READY})
"""The task may have begun, or is done."""
TAKES_SLOT: Final = frozenset({PROBED, SENT, ACCEPTED, STOPPING})
"""One of the worker's credits is in use for it."""

EXPECTED: Final = "expected"
ALIVE: Final = "alive"
LOST: Final = "lost"
DEAD: Final = "dead"

ARRIVE: Final = "arrive"
LEAVE: Final = "leave"
BURY: Final = "bury"

WORKER: Final[Table] = {
    EXPECTED: {ARRIVE: ALIVE, LEAVE: LOST, BURY: DEAD},
    ALIVE: {ARRIVE: ALIVE, LEAVE: LOST},
    LOST: {ARRIVE: ALIVE, BURY: DEAD},
    DEAD: {},
}

TABLES: Final[dict[str, Table]] = {"job": JOB, "part": PART, "attempt": ATTEMPT, "worker": WORKER}
