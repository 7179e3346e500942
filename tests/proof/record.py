"""What a run leaves behind: the lines that parties and the driver write. `logs` reads them.

A run is a folder. Each process of the load writes ``party-NAME.jsonl``, the driver ``driver.jsonl``: one JSON object a
line, in the order in which things happened to that process. Every line has ``t`` (seconds of CLOCK_MONOTONIC, the same
clock in all processes and network namespaces of a machine), ``who`` and ``ev``. A line is one write(2) of a file opened
for appending: what was said before a `kill -9` is there, and at most the last line is torn.

When a line is written matters to whoever judges it:

* ``call``, ``publish``, ``job``, ``cast``, ``fanout`` and ``notify`` **before** the message is handed to the library;
* ``up`` once the connection can carry messages; ``down`` **before** a party ends it itself, and as soon as it hears of
  it when something else ended it;
* ``provides`` and ``subscribed`` once the broker has confirmed it; ``withdrawn`` and ``unsubscribed`` before asking;
* ``serve`` and ``job_run`` when the request has been received, before it is answered;
* ``answer``, ``published``, ``event``, ``gap`` and ``job_done`` when they have been received.

Names. A party's ``who`` is free of ``#`` and ``/``; its connections are ``WHO#1``, ``WHO#2`` and so on, never used
twice, also not by the successor of a killed process (`Writer.conn` goes on from what the file says); its messages are
``WHO-1``, ``WHO-2`` and so on (`Writer.next_id` does the same). A call's ``n`` counts the calls of one connection to
one service from 0 on. Members are ``broker-0`` to ``broker-6``, ``gateway``, ``nfp``, ``oslo-1``, ``redis`` and the
like, and parties by their ``who``.

This file knows nothing of the product and needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.proof.logs import DRIVER, path_of, read_file
from tests.proof.scribe import Scribe

__all__ = ["ADMIN", "ANY", "DRIVER", "LOCAL", "OWNER", "USER", "Writer", "path_of", "read_file"]

OWNER: Final = 1
USER: Final = 2
LOCAL: Final = 4
ADMIN: Final = 8
"""The bits of ``roles`` (RFC 12)."""

ANY: Final = 0xFFFFFFFF
"""``node`` of a call that is addressed to no rank."""

At = int | str
"""Where a connection ends: a rank, or the member ``gateway``, ``nfp``, ``oslo-1`` …"""


class Writer(Scribe):
    """Writes the lines of one process. Not for several threads at once.

    Args:
        folder: the run's; it must be there.
        who: the party's name, or `DRIVER`.
        clock: gives ``t``; a party under another clock (libfaketime) must not use its own.

    Raises:
        OSError: the file cannot be opened or written: a run without its log is no run.
        ValueError: the name holds ``#`` or ``/``.
    """

    def __init__(self, folder: Path, who: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        if "#" in who or "/" in who or not who:
            raise ValueError(f"{who!r}: a party's name has no # and no /")
        self.who = who
        self._clock = clock
        path = path_of(folder, who)
        earlier = list(read_file(path)) if path.exists() else []
        self._conns = sum(1 for line in earlier if line["ev"] == "up")
        self._ids = max((number for line in earlier for number in _numbers(line, who)), default=0)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _end_torn_line(path, self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. What was written is there already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def line(self, ev: str, **fields: Any) -> float:
        """Write one line with ``t``, ``who`` and ``ev``; return its ``t``. Fields that are None are left out.

        Raises:
            ValueError: a field has the name of one of these three.
        """
        if taken := fields.keys() & {"t", "who", "ev"}:
            raise ValueError(f"fields of a line cannot be named {', '.join(sorted(taken))}")
        now = round(self._clock(), 6)
        said = {"t": now, "who": self.who, "ev": ev}
        said.update((name, value) for name, value in fields.items() if value is not None)
        os.write(self._fd, json.dumps(said, separators=(",", ":")).encode() + b"\n")
        return now

    # ------------------------------------------------------------- connections

    def conn(self) -> str:
        """Return a new connection's name. Call `up` with it, or never use it."""
        self._conns += 1
        return f"{self.who}#{self._conns}"

    def next_id(self) -> str:
        """Return a new message's id, which travels in its payload."""
        self._ids += 1
        return f"{self.who}-{self._ids}"

    def up(
        self,
        conn: str,
        at: At,
        userid: int,
        roles: int,
        *,
        host: int | None = None,
        unordered: bool = False,
        kind: str | None = None,
    ) -> float:
        """A connection can carry messages.

        Args:
            conn: a new name (`conn`).
            at: the rank, or the member, that it ends at.
            userid: what its messages have to be stamped with.
            roles: the same; the stamp may have fewer (LOCAL ends with the host), never more.
            host: the rank beside which the party runs, where that is another than the one beside which ``at`` runs.
            unordered: its requests may overtake each other (parallel HTTP requests, threads).
            kind: of transport, for the report: ``unix``, ``curve``, ``ws``, ``http``, ``nfp``, ``oslo``.
        """
        return self.line(
            "up",
            conn=conn,
            at=at,
            userid=userid,
            roles=roles,
            host=host,
            unordered=unordered or None,
            kind=kind,
        )

    def down(self, conn: str, why: str) -> float:
        """A connection has ended. why: ``closed`` when the party ended it itself, else what the library said."""
        return self.line("down", conn=conn, why=why)

    # ------------------------------------------------------------- calls (Flux, web, oslo)

    def provides(self, conn: str, service: str) -> float:
        """The broker has confirmed that this connection serves `service` (``to`` of calls)."""
        return self.line("provides", conn=conn, service=service)

    def withdrawn(self, conn: str, service: str) -> float:
        """This connection is about to stop serving `service`."""
        return self.line("withdrawn", conn=conn, service=service)

    def call(
        self,
        conn: str,
        ident: str,
        to: str,
        n: int,
        *,
        node: int = ANY,
        stream: int | None = None,
        expect: str | None = None,
        noresponse: bool | None = None,
        timeout_s: float | None = None,
    ) -> float:
        """A request is about to be sent.

        Args:
            conn: the caller's connection.
            ident: the id, which travels in the payload, as do conn and n.
            to: the service, without its method; ``oslo:TOPIC`` through oslo.messaging. A service that no party
                `provides` (``broker``, ``attr``) belongs to the broker of the rank addressed, or to the caller's own.
            n: counts the calls of this connection to this service.
            node: the rank addressed, `ANY` for none.
            stream: how many responses the provider will send before ENODATA; None: one response, no stream.
            expect: name of the errno that policy must give, for example ``EPERM`` or ``ENOSYS``; None: success.
            noresponse: no answer will come, and none is waited for: such a call has no end.
            timeout_s: after how long the party gives up by itself.
        """
        return self.line(
            "call",
            conn=conn,
            id=ident,
            to=to,
            n=n,
            node=node if node != ANY else None,
            stream=stream,
            expect=expect,
            noresponse=noresponse or None,
            timeout_s=timeout_s,
        )

    def answer(
        self, ident: str, errnum: int, *, k: int | None = None, last: bool = True, by: str | None = None
    ) -> float:
        """A response came.

        Args:
            ident: the call's.
            errnum: 0, or the error.
            k: the number that the provider put into this response's payload, from 0 on; None when it carries none (an
                error).
            last: no further one will come.
            by: the provider's connection, as its payload says; None when it carries none.
        """
        return self.line("answer", id=ident, errnum=errnum, k=k, last=last, by=by)

    def gave_up(self, ident: str, why: str) -> float:
        """No answer will be waited for any more. why: ``lost`` (the connection ended) or ``timeout``."""
        return self.line("gave_up", id=ident, why=why)

    def serve(self, conn: str, payload: Mapping[str, Any], userid: int | None, roles: int | None) -> float:
        """A provider received a request.

        Args:
            conn: the provider's connection.
            payload: the request's, with what the caller put there: ``id``, ``from`` (its connection), ``n``.
            userid: the stamp that came with it; None where the protocol has none (oslo, NFP).
            roles: the same.
        """
        return self.line(
            "serve",
            conn=conn,
            id=payload["id"],
            n=payload["n"],
            **{"from": payload["from"]},
            userid=userid,
            roles=roles,
        )

    # ------------------------------------------------------------- events

    def subscribed(self, conn: str, prefix: str, but: Sequence[str] | None = None) -> float:
        """The broker has confirmed the subscription. but: prefixes below it that policy denies this user."""
        return self.line("subscribed", conn=conn, prefix=prefix, but=but)

    def unsubscribed(self, conn: str, prefix: str) -> float:
        """The party is about to end the subscription."""
        return self.line("unsubscribed", conn=conn, prefix=prefix)

    def publish(
        self, conn: str, ident: str, topic: str, *, private: bool = False, expect: str | None = None
    ) -> float:
        """An event is about to be published by the RPC. expect: as in `call`, for a topic that policy forbids."""
        return self.line("publish", conn=conn, id=ident, topic=topic, private=private, expect=expect)

    def published(self, ident: str, seq: int) -> float:
        """The event is acknowledged: it has this number."""
        return self.line("published", id=ident, seq=seq)

    def unpublished(self, ident: str, errnum: int) -> float:
        """Publishing failed with an errno; -1 when the connection was lost or no answer came in time."""
        return self.line("unpublished", id=ident, errnum=errnum)

    def event(self, conn: str, ident: str, seq: int, topic: str, from_userid: int) -> float:
        """An event came. ident: of its payload; from_userid: the stamp it carries (-1 where the library shows none)."""
        return self.line("event", conn=conn, id=ident, seq=seq, topic=topic, from_userid=from_userid)

    def resumed(self, conn: str, after: int, upto: int, recovered: bool) -> float:
        """The connection goes on where the party's last one was: behind event ``after``; up to ``upto`` what was missed
        has come, if ``recovered``. Its subscriptions are told before, what was missed behind this line.
        """
        return self.line("resumed", conn=conn, after=after, upto=upto, recovered=recovered)

    def gap(self, conn: str, missed: int) -> float:
        """Broker, gateway or client library told that events are missing here; -1: it did not say how many."""
        return self.line("gap", conn=conn, missed=missed)

    # ------------------------------------------------------------- NFP and oslo

    def job(
        self, ident: str, conn: str, to: str, workers: Sequence[str] | None = None, *, once: bool = False
    ) -> float:
        """A job is about to be submitted.

        Args:
            ident: the job's own.
            conn: the client's connection.
            to: ``SERVICE.TASK``.
            workers: the ones it is for by name; None: any one.
            once: the task is declared as one that must not run twice.
        """
        return self.line("job", id=ident, conn=conn, to=to, workers=workers, once=once or None)

    def job_kept(self, ident: str) -> float:
        """The broker has acknowledged the job: from now on it may not be lost."""
        return self.line("job_kept", id=ident)

    def job_done(self, ident: str, status: str | int, *, worker: str | None = None) -> float:
        """A result was delivered: one for each worker it is for. status: as the library says it (200, 408 …)."""
        return self.line("job_done", id=ident, status=status, worker=worker)

    def job_run(self, ident: str, worker: str, attempt: int, *, begin: bool = True) -> float:
        """A worker begins (or has ended, just before it reports) to run a job."""
        return self.line("job_run", id=ident, worker=worker, attempt=attempt, begin=begin)

    def job_recorded(self, ident: str, status: str | int, *, worker: str | None = None) -> float:
        """What the broker's store says of a job after the run, a line for each recorded result."""
        return self.line("job_recorded", id=ident, status=status, worker=worker)

    def cast(self, conn: str, ident: str, to: str, n: int) -> float:
        """A cast of oslo.messaging to one server of ``oslo:TOPIC`` is about to be sent."""
        return self.line("cast", conn=conn, id=ident, to=to, n=n)

    def fanout(self, conn: str, ident: str, to: str, n: int) -> float:
        """A fan-out of oslo.messaging to all servers of ``oslo:TOPIC`` is about to be sent."""
        return self.line("fanout", conn=conn, id=ident, to=to, n=n)

    def notify(self, conn: str, ident: str, to: str, n: int) -> float:
        """A notification of oslo.messaging is about to be sent."""
        return self.line("notify", conn=conn, id=ident, to=to, n=n)


def _numbers(line: Mapping[str, Any], who: str) -> Iterator[int]:
    head, _, number = str(line.get("id", "")).rpartition("-")
    if head == who and number.isdigit():
        yield int(number)


def _end_torn_line(path: Path, fd: int) -> None:
    """A process was killed in the middle of a line: what follows begins on a new one."""
    size = path.stat().st_size
    if size and path.read_bytes()[-1:] != b"\n":
        os.write(fd, b"\n")
