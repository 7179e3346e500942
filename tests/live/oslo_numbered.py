"""Numbered messages of every kind through a node's proxy, whatever happens to it: what arrived, and how often.

Servers and clients are processes of their own, on sessions (``broker.oslo.client``), as applications have them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.live.oslo import ROOT, until

KINDS = ("call", "cast", "fanout", "notify")
SIDE = """
import json, sys, threading, time
from broker.oslo.client import open_session
from broker.oslo.contract import Address, CallTimeout, OsloFailure, Settings

told = json.loads(sys.argv[1])
session = open_session(Settings(**{**told["settings"], "directories": tuple(told["settings"].get("directories", ()))}))
lock = threading.Lock()

def say(*words):
    with lock:
        sys.stdout.write(" ".join(map(str, words)) + "\\n")
        sys.stdout.flush()

def serve():
    server = session.listen(Address("x", "t", told["name"]))
    notices = session.listen_notifications([("x", "n.info")], told.get("pool"))
    def take(inbox):
        while (item := inbox.get(None)) is not None:
            kind, number, work_s = json.loads(item.body)
            say("ran", kind, number)
            if told["take_s"]:
                time.sleep(told["take_s"])
            if item.wants_reply:
                if work_s:
                    threading.Thread(target=late, args=(item, number, work_s), daemon=True).start()
                else:
                    item.reply(b"%d" % number)
    def late(item, number, work_s):
        end_s = time.monotonic() + work_s
        while time.monotonic() < end_s:
            if item.monitor_s:
                item.beat()
            time.sleep(min(0.2, max(end_s - time.monotonic(), 0)))
        say("answered", number, time.monotonic())
        item.reply(b"%d" % number)
    threading.Thread(target=take, args=(notices,), daemon=True).start()
    say("ready")
    take(server)

def send():
    kind, rate, count, timeout_s = told["kind"], told["rate"], told["count"], told["timeout_s"]
    target = Address("x", "t")
    done = threading.Semaphore(0)
    def answered(number, answer):
        ok = answer == b"%d" % number
        say("call", number, "ok" if ok else type(answer).__name__, time.monotonic(), "" if ok else answer)
        done.release()
    # one of each before, so that the links are there
    session.call(target, json.dumps(["call", -1, 0]).encode(), timeout_s=20)
    session.cast(target, json.dumps(["cast", -1, 0]).encode())
    session.fanout(target, json.dumps(["fanout", -1, 0]).encode())
    session.notify("x", "n.info", json.dumps(["notify", -1, 0]).encode())
    time.sleep(0.3)
    say("ready")
    sys.stdin.readline()
    begin_s = time.monotonic()
    for number in range(count):
        wait_s = begin_s + number / rate - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        body = json.dumps([kind, number, told["work_s"]]).encode()
        try:
            if kind == "call":
                session.start_call(target, body, lambda answer, number=number: answered(number, answer),
                                   timeout_s=timeout_s, monitor_s=told.get("monitor_s"))
            elif kind == "cast":
                session.cast(target, body)
            elif kind == "fanout":
                session.fanout(target, body)
            else:
                session.notify("x", "n.info", body)
        except OsloFailure as error:
            say("failed", number, error)
    if kind == "call":
        for _ in range(count):
            done.acquire()
    time.sleep(0.5)
    say("counts", json.dumps(session.status()["counts"]))
    say("sent")
    sys.stdin.read()
    session.close()

serve() if told["do"] == "serve" else send()
"""

SILENCE_S = 10.0
"""Nothing more comes then: a proxy that was started again reads nothing for up to three seconds."""


class Side:
    """One process: its lines are read as they come."""

    def __init__(self, **told: Any) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", SIDE, json.dumps(told)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        until(lambda: "ready" in self.lines, 30, "the other process")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def go(self) -> None:
        """Let a sender begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Arrived(NamedTuple):
    """What became of ``count`` messages of one kind."""

    lost: list[int]
    doubled: list[int]
    out_of_order: int
    counts: dict[str, int]
    """Of the sending process."""


class Numbered:
    """Servers, and senders of numbered messages, at the node whose folder that is."""

    def __init__(self, folder: Path, *, servers: int = 1, take_s: float = 0.0, **settings: Any) -> None:
        self._stack = contextlib.ExitStack()
        self._settings = {"ipc_dir": str(folder), **settings}
        self.servers = [
            self._stack.enter_context(
                Side(do="serve", name=f"s{number}", settings=self._settings, take_s=take_s)
            )
            for number in range(servers)
        ]
        self.senders: dict[str, Side] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def send(self, *kinds: str, rate: float, seconds: float, folder: Path | None = None, **told: Any) -> int:
        """Begin to send, from the node of ``folder``; returns how many of each kind.

        ``told`` of calls: ``work_s`` that each takes, ``timeout_s``, ``monitor_s``.
        """
        count = int(rate * seconds)
        settings = self._settings if folder is None else {**self._settings, "ipc_dir": str(folder)}
        given = {"do": "send", "rate": rate, "count": count, "work_s": 0.0, "timeout_s": 20.0, **told}
        for kind in kinds:
            side = Side(kind=kind, settings=settings, **given)
            self.senders[kind] = self._stack.enter_context(side)
        for kind in kinds:  # once all are ready: together, however long it took to start them
            self.senders[kind].go()
        return count

    def arrived(self, kind: str, count: int, *, copies: int = 1, patience_s: float = 30.0) -> Arrived:
        """Wait until ``kind`` was sent, and all of it has come, or nothing more comes; ``copies``: that each has."""
        sender = self.senders[kind]
        until(lambda: "sent" in sender.lines, patience_s, f"the end of {kind}")
        before, quiet_s = -1, time.monotonic()
        while time.monotonic() < quiet_s + SILENCE_S:
            ran = self._ran(kind)
            if sum(map(len, ran)) != before:
                before, quiet_s = sum(map(len, ran)), time.monotonic()
            if before >= count * copies:
                break
            time.sleep(0.05)
        time.sleep(0.2)  # what is doubled comes, too
        ran = self._ran(kind)
        each = Counter(number for numbers in ran for number in numbers)
        late = sum(later < earlier for numbers in ran for earlier, later in itertools.pairwise(numbers))
        counts = json.loads(next(line for line in sender.lines if line.startswith("counts")).split(" ", 1)[1])
        return Arrived(
            [number for number in range(count) for _ in range(max(copies - each[number], 0))],
            [number for number in range(count) if each[number] > copies],
            late,
            counts,
        )

    def taken(self, kind: str) -> int:
        """How many have come to servers by now."""
        return sum(map(len, self._ran(kind)))

    def _ran(self, kind: str) -> list[list[int]]:
        """Numbers that each server was given, in order; -1 are those before the first."""
        begin = f"ran {kind} "
        return [
            [
                int(line[len(begin) :])
                for line in list(server.lines)
                if line.startswith(begin) and line[-2:] != "-1"
            ]
            for server in self.servers
        ]

    def answers(self) -> dict[int, tuple[str, float]]:
        """What became of each call, and when."""
        found = {}
        for line in self.senders["call"].lines:
            words = line.split(" ", 4)
            if words[0] == "call":
                found[int(words[1])] = (words[2], float(words[3]))
        return found

    def failures(self) -> list[str]:
        """What the first callers were told that were not answered."""
        return [
            line for line in self.senders["call"].lines if line.startswith("call") and " ok " not in line
        ][:3]

    def answered(self) -> dict[int, float]:
        """When each call was answered by its server."""
        return {
            int(words[1]): float(words[2])
            for server in self.servers
            for line in list(server.lines)
            if (words := line.split(" "))[0] == "answered"
        }
