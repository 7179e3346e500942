"""Right logs of a small world, line by line, for tests that make them wrong.

Rank 0 has 1 and 2 below it, rank 1 has 3 and 4; the gateway stands beside 1, NFP beside 2, oslo nodes beside 3 and 4.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.proof.checker import Verdict, check
from tests.proof.logs import DRIVER, path_of
from tests.proof.record import LOCAL, OWNER, USER

PARENTS = [None, 0, 0, 1, 1]
HOSTS = {"gateway": 1, "gateway-2": 2, "nfp": 2, "oslo-1": 3, "oslo-2": 4, "redis": 0}
MEMBERS = ("broker-0", "broker-1", "gateway", "nfp")

Line = dict[str, Any]


class Scene:
    """A run as it is made up. Every method adds lines and lets a little time pass: what is told in order happens so.

    Attributes:
        lines: party -> its lines. t: now.
    """

    def __init__(self, **world: Any) -> None:
        self.lines: dict[str, list[Line]] = {DRIVER: []}
        self.t = 100.0
        self.seq = 0
        self._conns: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._n: dict[tuple[str, str], int] = {}
        self._ranks: dict[str, int] = {}
        self.add(DRIVER, "world", parents=PARENTS, hosts=HOSTS, seed=1, seconds=60.0, **world)
        for member in MEMBERS:
            self.add(DRIVER, "member", name=member, did="started")
        self.baseline("before")
        self.add(DRIVER, "load", on=True)

    def add(self, who: str, ev: str, **fields: Any) -> Line:
        self.t = round(self.t + 0.001, 6)
        line = {"t": self.t, "who": who, "ev": ev, **{k: v for k, v in fields.items() if v is not None}}
        self.lines.setdefault(who, []).append(line)
        return line

    def wait(self, seconds: float) -> None:
        self.t = round(self.t + seconds, 6)

    # -- connections -------------------------------------------------------------------------------

    def up(self, who: str, at: int | str, userid: int = 0, roles: int | None = None, **more: Any) -> str:
        self._conns[who] = self._conns.get(who, 0) + 1
        conn = f"{who}#{self._conns[who]}"
        if roles is None:
            roles = OWNER | (LOCAL if isinstance(at, int) else 0)
        self.add(who, "up", conn=conn, at=at, userid=userid, roles=roles, **more)
        return conn

    def down(self, conn: str, why: str = "closed") -> Line:
        return self.add(who_of(conn), "down", conn=conn, why=why)

    def provides(self, conn: str, service: str) -> Line:
        (at,) = [
            line["at"]
            for line in self.lines[who_of(conn)]
            if line.get("at") is not None and line["conn"] == conn
        ]
        if at == "gateway" or isinstance(at, int):
            self._ranks[service] = HOSTS.get(at, at)
        return self.add(who_of(conn), "provides", conn=conn, service=service)

    def subscribed(self, conn: str, prefix: str, **more: Any) -> Line:
        return self.add(who_of(conn), "subscribed", conn=conn, prefix=prefix, **more)

    # -- calls -------------------------------------------------------------------------------------

    def next_id(self, who: str) -> str:
        self._ids[who] = self._ids.get(who, 0) + 1
        return f"{who}-{self._ids[who]}"

    def call(self, conn: str, to: str, ev: str = "call", **more: Any) -> Line:
        """To the rank of the service, if the test does not say otherwise."""
        more.setdefault("node", self._ranks.get(to))
        n = self._n[conn, to] = self._n.get((conn, to), -1) + 1
        return self.add(who_of(conn), ev, conn=conn, id=self.next_id(who_of(conn)), to=to, n=n, **more)

    def serve(self, call: Line, provider: str, userid: int | None = 0, roles: int | None = OWNER) -> Line:
        return self.add(
            who_of(provider),
            "serve",
            **{"conn": provider, "id": call["id"], "n": call["n"], "from": call["conn"]},
            userid=userid,
            roles=roles,
        )

    def answer(
        self, call: Line, errnum: int = 0, *, by: str | None = None, k: int | None = None, last: bool = True
    ) -> Line:
        if errnum == 0 and k is None:
            k = 0
        return self.add(call["who"], "answer", id=call["id"], errnum=errnum, k=k, last=last, by=by)

    def gave_up(self, call: Line, why: str = "lost") -> Line:
        return self.add(call["who"], "gave_up", id=call["id"], why=why)

    def rpc(
        self, conn: str, to: str, provider: str, userid: int = 0, roles: int = OWNER, **more: Any
    ) -> Line:
        """A call that is served and answered."""
        call = self.call(conn, to, **more)
        self.serve(call, provider, userid, roles)
        self.answer(call, by=provider)
        return call

    def stream(self, conn: str, to: str, provider: str, count: int) -> Line:
        call = self.call(conn, to, stream=count)
        self.serve(call, provider)
        for k in range(count):
            self.answer(call, by=provider, k=k, last=False)
        self.answer(call, 61)
        return call

    # -- events ------------------------------------------------------------------------------------

    def publish(
        self,
        conn: str,
        topic: str,
        *to: str,
        userid: int = 0,
        private: bool = False,
        acknowledge: bool = True,
    ) -> Line:
        """An event that gets the next number and reaches ``to``."""
        who = who_of(conn)
        line = self.add(who, "publish", conn=conn, id=self.next_id(who), topic=topic, private=private)
        self.seq += 1
        for subscriber in to:
            self.event(line, subscriber, self.seq, userid)
        if acknowledge:
            self.add(who, "published", id=line["id"], seq=self.seq)
        return line

    def event(self, published: Line, subscriber: str, seq: int, userid: int = 0) -> Line:
        return self.add(
            who_of(subscriber),
            "event",
            conn=subscriber,
            id=published["id"],
            seq=seq,
            topic=published["topic"],
            from_userid=userid,
        )

    def gap(self, conn: str, missed: int = 1) -> Line:
        return self.add(who_of(conn), "gap", conn=conn, missed=missed)

    # -- jobs --------------------------------------------------------------------------------------

    def job(
        self, conn: str, to: str = "lab.work", *, workers: list[str] | None = None, once: bool = False
    ) -> Line:
        who = who_of(conn)
        line = self.add(
            who, "job", id=self.next_id(who), conn=conn, to=to, workers=workers, once=once or None
        )
        self.add(who, "job_kept", id=line["id"])
        return line

    def run(self, job: Line, worker: str, attempt: int = 1, *, end: bool = True) -> Line:
        line = self.add(worker, "job_run", id=job["id"], worker=worker, attempt=attempt, begin=True)
        if end:
            self.add(worker, "job_run", id=job["id"], worker=worker, attempt=attempt, begin=False)
        return line

    def done(self, job: Line, worker: str, status: int = 200) -> Line:
        return self.add(job["who"], "job_done", id=job["id"], status=status, worker=worker)

    # -- the driver --------------------------------------------------------------------------------

    def fault(self, begin: bool, kind: str, settle_s: float = 2.0, **more: Any) -> Line:
        return self.add(DRIVER, "fault", begin=begin, kind=kind, settle_s=settle_s, **more)

    def during(self, kind: str, seconds: float = 3.0, **more: Any) -> None:
        """A whole fault, nothing else meanwhile."""
        self.fault(True, kind, **more)
        self.wait(seconds)
        self.fault(False, kind, **more)

    def baseline(self, when: str, **more: Any) -> None:
        for member in MEMBERS:
            figures = {"rss_kib": 40_000, "fds": 30, "tasks": 12} | more
            self.add(DRIVER, "baseline", when=when, member=member, **figures)

    def end(self) -> Scene:
        """Load off, everybody leaves, a last look."""
        self.add(DRIVER, "load", on=False)
        self.wait(15)
        told = [line for lines in self.lines.values() for line in lines]
        ended = {line["conn"] for line in told if line["ev"] == "down"}
        kills = [line for line in told if line["ev"] == "fault" and line["begin"] and line["kind"] == "kill9"]
        ups = [line for line in told if line["ev"] == "up"]
        for up in ups:
            killed = any(up["who"] in kill["members"] and up["t"] < kill["t"] for kill in kills)
            if up["conn"] not in ended and not killed:
                self.down(up["conn"])
        self.baseline("after")
        return self

    # -- judging -----------------------------------------------------------------------------------

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for who, lines in self.lines.items():
            path_of(folder, who).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    def judged(self, folder: Path) -> Verdict:
        return check(self.save(folder))


def who_of(conn: str) -> str:
    return conn.partition("#")[0]


def busy() -> tuple[Scene, dict[str, str]]:
    """A scene with somebody of every kind, connected and subscribed; (scene, name -> connection)."""
    scene = Scene(tells=True)
    conns = {
        "a": scene.up("a", 0),
        "b": scene.up("b", 3, host=3),
        "c": scene.up("c", 4, userid=1500, roles=USER | LOCAL),
        "w": scene.up("w", "gateway", userid=1001, roles=OWNER, host=1, kind="ws"),
        "u": scene.up("u", "gateway", userid=1002, roles=USER, host=1, kind="ws"),
    }
    for name in ("a", "b", "w"):
        scene.provides(conns[name], f"s{name}")
    for conn in conns.values():
        scene.subscribed(conn, "t.")
    return scene, conns
