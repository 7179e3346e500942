"""The lines of a run as connections, calls, events and jobs; what does not fit together is said (C0).

Lines of one process are in order; between processes only times relate. `t` of a line is a little before what it
announces (``call``) or a little after what it reports (``serve``); see `tests.proof.record` for which is which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tests.proof.checker.entries import ANY, Call, Conn, Event, Held, Job, Line
from tests.proof.checker.places import Places
from tests.proof.checker.trouble import FOREVER, Trouble
from tests.proof.checker.verdict import Verdict


class Unjudgeable(Exception):
    """The logs do not tell what the world was, or when load ran."""


class Story:
    """A run. Reading it puts C0 into the verdict.

    Args:
        files: as `record.read` gives them, the driver's first. verdict: where C0 goes.

    Attributes:
        began, ended: when load was switched on and off; told: (rank, first, last, t) of numbers that brokers missed.
        services: name -> (held, provider) of each time it was provided.
        resets: times (gone, back) of rank 0: numbers begin anew.

    Raises:
        Unjudgeable: no world, no load, or times that run backwards.
    """

    def __init__(self, files: Sequence[Sequence[Line]], verdict: Verdict) -> None:
        self.verdict = verdict
        driver = list(files[0])
        worlds = [line for line in driver if line["ev"] == "world"]
        if len(worlds) != 1:
            raise Unjudgeable(f"{len(worlds)} worlds in the driver's log, not one")
        self.world = worlds[0]
        self.places = Places(self.world["parents"], self.world["hosts"])
        self.trouble = Trouble(self.places, driver)
        self.driver = driver
        self.began = _time_of(driver, True)
        self.ended = _time_of(driver, False)
        self.conns: dict[str, Conn] = {}
        self.calls: dict[str, Call] = {}
        self.events: dict[str, Event] = {}
        self.jobs: dict[str, Job] = {}
        self.services: dict[str, list[tuple[Held, Conn]]] = {}
        self.told = [(line["rank"], line["first"], line["last"]) for line in driver if line["ev"] == "told"]
        self.resets = _resets(driver)
        self._read(files[1:])

    # ------------------------------------------------------------- reading

    def _read(self, files: Iterable[Sequence[Line]]) -> None:
        """First who and what there was, then what refers to it: files of other parties may come later."""
        files = [*files, self.driver]
        for lines in files:
            _in_order(lines)
        for known in (_FIRST, _SECOND):
            for lines in files:
                for line in lines:
                    take = known.get(line["ev"])
                    if take is not None:
                        take(self, line)
        self._kills()
        for name, lines in ((lines[0]["who"], lines) for lines in files[:-1] if lines):
            if not any(line["ev"] in _LOAD for line in lines):
                self.verdict.add("C0", f"party {name} sent and got nothing", lines[0]["t"], name)

    def _strange(self, line: Line, what: str) -> None:
        self.verdict.add(
            "C0", f"{line['who']} wrote {line['ev']} of {what}", line["t"], str(line.get("id", ""))
        )

    def _conn_of(self, line: Line) -> Conn | None:
        conn = self.conns.get(line["conn"])
        if conn is None or conn.who != line["who"]:
            self._strange(line, f"{line['conn']}, which is no connection of it")
            return None
        return conn

    def _up(self, line: Line) -> None:
        if line["conn"] in self.conns:
            self._strange(line, f"{line['conn']} a second time")
            return
        try:
            way = self.places.to_member(line["who"], line["at"], line.get("host"))
        except KeyError:
            self._strange(line, f"{line['at']!r}, which is no rank and no member of this world")
            return
        self.conns[line["conn"]] = Conn(
            line["conn"],
            line["who"],
            line["at"],
            line["userid"],
            line["roles"],
            line["t"],
            way,
            line.get("kind") or str(line["at"]).rstrip("-0123456789") or "unix",
            not line.get("unordered"),
        )

    def _down(self, line: Line) -> None:
        conn = self._conn_of(line)
        if conn is None:
            return
        if conn.said:
            self._strange(line, f"{conn.name}, which had ended already")
            return
        conn.said, conn.end, conn.why = True, min(conn.end, line["t"]), line["why"]
        for held in (*conn.provides, *conn.subscriptions):
            held.end = min(held.end, conn.end)

    def _provides(self, line: Line) -> None:
        conn = self._conn_of(line)
        if conn is not None:
            held = Held(line["service"], line["t"])
            conn.provides.append(held)
            self.services.setdefault(held.name, []).append((held, conn))

    def _subscribed(self, line: Line) -> None:
        conn = self._conn_of(line)
        if conn is not None:
            conn.subscriptions.append(Held(line["prefix"], line["t"], but=tuple(line.get("but", ()))))

    def _over(self, line: Line) -> None:
        """``withdrawn`` and ``unsubscribed``: the newest that is still held."""
        conn = self._conn_of(line)
        if conn is None:
            return
        withdrawn = line["ev"] == "withdrawn"
        held, name = (conn.provides, line["service"]) if withdrawn else (conn.subscriptions, line["prefix"])
        for one in reversed(held):
            if one.name == name and one.end == FOREVER:
                one.end = line["t"]
                return
        self._strange(line, f"{name!r}, which it did not hold")

    def _call(self, line: Line) -> None:
        conn = self._conn_of(line)
        if conn is None:
            return
        if line["id"] in self.calls:
            self._strange(line, "an id that was used before")
            return
        call = Call(line["id"], line["ev"], conn, line["to"], line["n"], line["t"])
        call.node = line.get("node", ANY)
        call.stream = line.get("stream")
        call.expect = line.get("expect")
        call.noresponse = bool(line.get("noresponse")) or line["ev"] != "call"
        self.calls[call.id] = call

    def _answer(self, line: Line) -> None:
        call = self.calls.get(line["id"])
        if call is None or call.conn.who != line["who"]:
            self._strange(line, f"{line['id']}, which it did not call")
            return
        if line["ev"] == "answer":
            call.answers.append(line)
        if line["ev"] == "gave_up" or line["last"]:
            call.ends.append(line)

    def _serve(self, line: Line) -> None:
        conn, call = self._conn_of(line), self.calls.get(line["id"])
        if conn is None:
            return
        if call is None or (call.conn.name, call.n) != (line["from"], line["n"]) or line["t"] < call.t:
            self._strange(line, f"{line['id']} from {line['from']}, which that did not send (yet)")
            return
        call.serves.append((line, conn))
        conn.served.append(call)

    def _publish(self, line: Line) -> None:
        conn = self._conn_of(line)
        if conn is None:
            return
        if line["id"] in self.events:
            self._strange(line, "an id that was used before")
            return
        self.events[line["id"]] = Event(
            line["id"], conn, line["topic"], line["private"], line.get("expect"), line["t"]
        )

    def _published(self, line: Line) -> None:
        event = self.events.get(line["id"])
        if event is None or event.conn.who != line["who"]:
            self._strange(line, f"{line['id']}, which it did not publish")
            return
        event.ends += 1
        event.ended = min(event.ended, line["t"])
        if line["ev"] == "unpublished":
            event.refused = line["errnum"]
            return
        event.acknowledged = True
        self._numbered(event, line)

    def _event(self, line: Line) -> None:
        conn, event = self._conn_of(line), self.events.get(line["id"])
        if conn is None:
            return
        if event is None or line["t"] < event.t:
            self._strange(line, f"{line['id']}, which nobody had published (yet)")
            return
        conn.heard.append(line)
        event.seen.append((line, conn))
        self._numbered(event, line)

    def _numbered(self, event: Event, line: Line) -> None:
        """Somebody says which number an event has."""
        if event.seq and event.seq != line["seq"]:
            self.verdict.add(
                "C7", f"{event.id} has the numbers {event.seq} and {line['seq']}", line["t"], event.id
            )
        event.seq = event.seq or line["seq"]
        event.known = min(event.known, line["t"])

    def _gap(self, line: Line) -> None:
        conn = self._conn_of(line)
        if conn is not None:
            conn.heard.append(line)

    def _resumed(self, line: Line) -> None:
        conn = self._conn_of(line)
        if conn is not None:
            conn.resumed = line

    def _job(self, line: Line) -> None:
        conn = self._conn_of(line)
        if conn is None:
            return
        if line["id"] in self.jobs:
            self._strange(line, "an id that was used before")
            return
        workers = line.get("workers")
        self.jobs[line["id"]] = Job(
            line["id"],
            conn,
            line["to"],
            None if workers is None else tuple(workers),
            bool(line.get("once")),
            line["t"],
        )

    def _of_job(self, line: Line) -> None:
        job = self.jobs.get(line["id"])
        if job is None:
            self._strange(line, f"{line['id']}, which nobody submitted")
        elif line["ev"] == "job_kept":
            job.kept = min(job.kept, line["t"])
        else:
            {"job_done": job.done, "job_recorded": job.recorded, "job_run": job.runs}[line["ev"]].append(line)

    # ------------------------------------------------------------- what ends without a word

    def _kills(self) -> None:
        """Connections of a party that was killed ended then; it could not say so."""
        for t, name in _ends(self.driver):
            for conn in self.conns.values():
                if conn.who == name and conn.begin <= t < conn.end and not conn.said:
                    conn.end, conn.why = t, "killed"
                    for held in (*conn.provides, *conn.subscriptions):
                        held.end = min(held.end, t)


_LOAD: Final = frozenset({"call", "serve", "publish", "event", "job", "job_run", "cast", "fanout", "notify"})
"""What shows that a party did something."""

_FIRST: Final[dict[str, Callable[[Story, Line], None]]] = {
    "up": Story._up,
    "provides": Story._provides,
    "subscribed": Story._subscribed,
    "withdrawn": Story._over,
    "unsubscribed": Story._over,
    "down": Story._down,
    "call": Story._call,
    "cast": Story._call,
    "fanout": Story._call,
    "notify": Story._call,
    "publish": Story._publish,
    "job": Story._job,
}

_SECOND: Final[dict[str, Callable[[Story, Line], None]]] = {
    "answer": Story._answer,
    "gave_up": Story._answer,
    "serve": Story._serve,
    "published": Story._published,
    "unpublished": Story._published,
    "event": Story._event,
    "gap": Story._gap,
    "resumed": Story._resumed,
    "job_kept": Story._of_job,
    "job_done": Story._of_job,
    "job_recorded": Story._of_job,
    "job_run": Story._of_job,
}


def _time_of(driver: Iterable[Line], on: bool) -> float:
    for line in driver:
        if line["ev"] == "load" and line["on"] is on:
            return float(line["t"])
    raise Unjudgeable(f"the driver never wrote that load was {'begun' if on else 'ended'}")


def _in_order(lines: Sequence[Line]) -> None:
    """Times of one process never run backwards.

    Raises:
        Unjudgeable: they do.
    """
    last = 0.0
    for line in lines:
        if line["t"] < last:
            raise Unjudgeable(f"{line['who']}: {line['ev']} at {line['t']} stands behind a line of {last}")
        last = line["t"]


def _ends(driver: Iterable[Line]) -> list[tuple[float, str]]:
    """When members were killed or ended: (time, name)."""
    ends: list[tuple[float, str]] = []
    for line in driver:
        if line["ev"] == "fault" and line["begin"] and line["kind"] == "kill9":
            ends += [(line["t"], name) for name in line["members"]]
        elif line["ev"] == "member" and line["did"] == "exited":
            ends.append((line["t"], line["name"]))
    return ends


def _resets(driver: Sequence[Line]) -> list[tuple[float, float]]:
    """From when to when rank 0 was away, each time a new one came: its numbers begin anew."""
    starts = [
        line["t"]
        for line in driver
        if line["ev"] == "member" and line["name"] == "broker-0" and line["did"] == "started"
    ]
    ends = [t for t, name in _ends(driver) if name == "broker-0"]
    return [(max((t for t in ends if t <= start), default=start), start) for start in starts[1:]]
