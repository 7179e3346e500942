"""Servers and clients of oslo.messaging's pipelines, through the port that the driver of oslo.messaging uses."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from broker.oslo.client import open_session
from broker.oslo.client.inbox import ClientInbox
from broker.oslo.client.session import ClientSession
from broker.oslo.contract import Address, CallTimeout, Closed, OsloFailure, Settings
from tests.proof.layout import Party
from tests.proof.parties.party import Place
from tests.proof.record import Writer

EXCHANGE = "proof"
CALLS, CASTS, ALL, NEWS = "work", "todo", "all", "news"
"""Topics: one for each pipeline, for between pipelines there is no order."""
PRIORITY = ".info"
EVERY_S = 0.1
TIMEOUT_S = 15.0
LOOK_S = 0.02


def main(party: Party, place: Place) -> int:
    return (Serving if party.kind == "oslo-server" else Asking)(party, place).run()


class Side:
    """What both have. Library calls wait, so this runs in a thread's way, the two signals are flags."""

    def __init__(self, party: Party, place: Place) -> None:
        self.party = party
        self.log = Writer(Path(place.folder), party.name)
        self.port: ClientSession = open_session(Settings(ipc_dir=place.uri))
        self.draining = self.leaving = False
        self.conn = self.status = ""
        signal.signal(signal.SIGUSR1, self._told)
        signal.signal(signal.SIGTERM, self._told)

    def _told(self, number: int, _frame: object) -> None:
        self.draining = True
        self.leaving = self.leaving or number == signal.SIGTERM

    def up(self) -> None:
        self.conn = self.log.conn()
        self.log.up(self.conn, self.party.at, os.getuid(), 0, kind="oslo")

    def run(self) -> int:
        try:
            self.work()
        finally:
            for conn in filter(None, (self.conn, self.status)):
                self.log.down(conn, "closed")
            self.port.close()
            self.log.close()
        return 0

    def work(self) -> None:
        raise NotImplementedError


class Serving(Side):
    """One server that takes calls, casts, fan-outs and notifications."""

    def work(self) -> None:
        name = self.party.name
        self.up()
        intakes = {
            CALLS: self.port.listen(Address(EXCHANGE, CALLS, name)),
            CASTS: self.port.listen(Address(EXCHANGE, CASTS, name)),
            ALL: self.port.listen(Address(EXCHANGE, ALL, name)),
            NEWS: self.port.listen_notifications([(EXCHANGE, NEWS + PRIORITY)], None),
        }
        for topic in intakes:
            self.log.provides(self.conn, f"oslo:{topic}")
        said = False
        while not self.leaving:
            for intake in intakes.values():
                self._take(intake)
            if self.draining and not said:
                said = True
                print("drained", flush=True)
        for intake in intakes.values():
            intake.stop()
            self._take(intake)

    def _take(self, intake: ClientInbox) -> None:
        item = intake.get(LOOK_S)
        while item is not None:
            said: dict[str, Any] = json.loads(item.body)
            self.log.serve(self.conn, said, None, None)
            if item.wants_reply:
                item.reply(json.dumps({"id": said["id"], "by": self.conn, "k": 0}).encode())
            item = intake.get(0)


class Asking(Side):
    """Calls, one after the other, with casts, fan-outs and notifications between.

    These are a connection of their own in the log, without order: one that a dying node did not take is given to
    another server, behind later ones.
    """

    def work(self) -> None:
        self.up()
        self.status = self.log.conn()
        self.log.up(self.status, self.party.at, os.getuid(), 0, kind="oslo", unordered=True)
        self.counts: dict[str, int] = {}
        turn = 0
        while not self.draining:
            time.sleep(EVERY_S)
            self._call()
            if turn % 3 == 0:
                self._tell("cast", CASTS)
                self._tell("fanout", ALL)
            if turn % 4 == 0:
                self._tell("notify", NEWS)
            turn += 1
        print("drained", flush=True)
        while not self.leaving:
            time.sleep(LOOK_S)

    def _said(self, conn: str, topic: str) -> dict[str, Any]:
        number = self.counts[topic] = self.counts.get(topic, -1) + 1
        return {"id": self.log.next_id(), "from": conn, "n": number}

    def _call(self) -> None:
        said = self._said(self.conn, CALLS)
        ident = said["id"]
        self.log.call(self.conn, ident, f"oslo:{CALLS}", said["n"], timeout_s=TIMEOUT_S)
        try:
            answer = self.port.call(Address(EXCHANGE, CALLS), json.dumps(said).encode(), timeout_s=TIMEOUT_S)
            told = json.loads(answer)
            self.log.answer(ident, 0, k=told["k"], by=told["by"])
        except CallTimeout:
            self.log.gave_up(ident, "timeout")
        except Closed:
            self.log.gave_up(ident, "lost")
        except OsloFailure as error:
            self.log.note(f"{ident}: {type(error).__name__}: {error}"[:300])
            self.log.answer(ident, error.errno)

    def _tell(self, how: str, topic: str) -> None:
        said = self._said(self.status, topic)
        body = json.dumps(said).encode()
        try:
            if how == "cast":
                self.log.cast(self.status, said["id"], f"oslo:{topic}", said["n"])
                self.port.cast(Address(EXCHANGE, topic), body, retry=0)
            elif how == "fanout":
                self.log.fanout(self.status, said["id"], f"oslo:{topic}", said["n"])
                self.port.fanout(Address(EXCHANGE, topic), body, retry=0)
            else:
                self.log.notify(self.status, said["id"], f"oslo:{topic}", said["n"])
                self.port.notify(EXCHANGE, topic + PRIORITY, body, retry=0)
        except OsloFailure as error:
            self.log.note(f"{said['id']}: {type(error).__name__}: {error}"[:300])
            time.sleep(EVERY_S)
