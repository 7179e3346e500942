"""What passes a node's proxy, on its way to the journal: one tap for all rooms of a process.

What the records are, ``noting`` says.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from broker.journal.layout import CAPTURE, STATE
from broker.journal.options import JournalOptions
from broker.journal.recorder import CLOSE_S, Recorder
from broker.journal.tap import FLUSH_S, Tap
from broker.oslo.reactor import Reactor


class Finishing(Protocol):
    """Notes of a room."""

    def done(self) -> None:
        """Note what is held back."""


class Recording:
    """The tap of one proxy process.

    Args:
        options: where to, and what. reactor: for timers.

    Attributes:
        active: records are taken at present. both: deliveries, too. rooms: may hold something back until ``done``.
    """

    def __init__(self, options: JournalOptions, reactor: Reactor) -> None:
        self.active = False
        self.both = options.capture == "both"
        self._options = options
        self._reactor = reactor
        self._recorder: Recorder | None = None
        self._settling = False
        self._timing = False
        self.rooms: list[Finishing] = []

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin; the reactor has to be open.

        Raises:
            ConfigError: records cannot be written there.
        """
        self._recorder = recorder = Recorder(self._options, on_state=self._state)
        self._tap = Tap(recorder)
        try:
            recorder.start()
        except BaseException:
            self._recorder = None
            recorder.close(0.0)
            raise
        self._reactor.add_reader(recorder.fileno(), self._poll)
        told = {"state": "on", "capture": self._options.capture, "payload": self._options.payload}
        self.note(STATE, CAPTURE, told)

    def stop(self) -> None:
        """Hand everything over and wait for the writer, ``CLOSE_S`` at most. Harmless twice."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        self._reactor.remove_reader(recorder.fileno())
        for room in self.rooms:
            room.done()
        if self.active:
            self.note(STATE, CAPTURE, {"state": "off", "reason": "the proxy is stopping"})
        self.active = False
        self._tap.flush()
        recorder.close(CLOSE_S)

    def _state(self, state: str) -> None:
        self.active = state == "on"
        if state.startswith("off:"):
            self._reactor.say(logging.ERROR, "the journal is %s", (state,))

    # ------------------------------------------------------------ the tap

    def note(
        self, kind: int, topic: str, facts: dict[str, Any], wire: list[bytes] | None = None, **mark: int
    ) -> None:
        """One record; see ``Tap.note``."""
        self._tap.note(kind, topic, facts, wire or [], **mark)
        self._soon()

    def peer(self, name: str, transport: int, role: str, **facts: Any) -> int:
        """See ``Tap.peer``."""
        self._soon()
        return self._tap.peer(name, transport, role, **facts)

    def forget(self, number: int) -> None:
        """See ``Tap.forget``."""
        self._tap.forget(number)

    def _soon(self) -> None:
        if not self._settling:
            self._settling = True
            self._reactor.call_soon(self._settle)

    def _settle(self) -> None:
        self._settling = False
        self._tap.settle()
        self._arm()

    def _flush(self) -> None:
        self._timing = False
        if self._recorder is not None:
            self._tap.flush()
            self._arm()

    def _poll(self) -> None:
        if self._recorder is not None:
            self._recorder.poll()
            self._arm()

    def _arm(self) -> None:
        if not self._timing and self._recorder is not None and self._tap.waiting:
            self._timing = True
            self._reactor.call_later(FLUSH_S, self._flush)
