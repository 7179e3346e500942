"""A journal on paper: the real tap of a desk's broker, and a recorder that only remembers."""

import asyncio
import json
import os

from broker.journal import layout, marks
from broker.journal.recorder import Figures
from broker.node.capture import Capture
from broker.settings import JournalSection
from broker.wire.message import MAGIC_DEPLOYED
from broker.wire.parts import split_parts


class PaperRecorder:
    """Keeps what it is handed; says nothing unless told to."""

    def __init__(self, options, *, on_state=None):
        self.options, self.on_state = options, on_state
        self.state = "off"
        self.introduce = None
        self.records = []
        self.waiting = False
        self.gone = True
        self.hindrance = None
        self.polls = self.starts = self.shed = self.closed = 0
        self.pid = 4711
        self._read, self._write = os.pipe()

    def start(self):
        if self.hindrance is not None:
            raise self.hindrance
        self.starts += 1
        if self.starts > 1:
            self._take(self.introduce()[0])
        self.state = "on"
        self.on_state("on")

    def stop(self, reason=""):
        self.fail(f"off: {reason}" if reason else "off")

    def fail(self, state):
        self.state = state
        self.on_state(state)

    def close(self, timeout_s=5.0):
        self.closed += 1
        os.close(self._read)
        os.close(self._write)
        self.state = "off"

    def fileno(self):
        return self._read

    def poll(self):
        self.polls += 1

    def hand(self, items, records):
        if self.state == "on":
            self._take(items)
        else:
            self.shed += records

    def _take(self, items):
        data = b"".join(items)
        while data:
            kind, transport, direction, reason, peer, via, claimed = marks.MARK.unpack_from(data)
            data = data[16:]
            if kind == marks.TIME:
                continue
            assert data.startswith(MAGIC_DEPLOYED)
            size = int.from_bytes(data[4:8], "big")
            parts = [bytes(part) for part in split_parts(data[8 : 8 + size])]
            data = data[8 + size :]
            self.records.append(Taken(kind, transport, direction, reason, peer, via, claimed, parts))

    @property
    def figures(self):
        return Figures(len(self.records) + self.shed, len(self.records), self.shed, 0, 0, 0, 0)


class Taken:
    """One record."""

    def __init__(self, kind, transport, direction, reason, peer, via, claimed, parts):
        self.kind, self.transport, self.direction, self.reason = kind, transport, direction, reason
        self.peer, self.via, self.claimed, self.parts = peer, via, claimed, parts

    @property
    def topic(self):
        return self.parts[0].decode() if self.kind == layout.STATE else None

    @property
    def facts(self):
        return json.loads(self.parts[0 if self.kind == layout.DICTIONARY else 1])


class Journal:
    """A desk whose broker records on paper."""

    def __init__(self, desk, **section):
        self.desk = desk
        self.capture = Capture(desk.broker, JournalSection(enabled=True, directory="/j", **section))
        self.paper = self.capture.recorder

    def __enter__(self):
        self.capture.begin(asyncio.get_running_loop())
        return self

    def __exit__(self, *_error):
        self.capture.end()

    @property
    def taken(self):
        self.capture.tap.flush()
        return self.paper.records

    def of(self, kind):
        return [each for each in self.taken if each.kind == kind]

    def state(self, topic):
        return [each for each in self.of(layout.STATE) if each.topic == topic]

    @property
    def peers(self):
        return {each.facts["name"]: each for each in self.of(layout.DICTIONARY)}
