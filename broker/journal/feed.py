"""A tap with its recorder on an event loop: a batch is a turn, flushed by a timer while something waits.

For brokers and proxies that record beside their own work; ``node.capture`` ends its batches in the corridor itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from broker.errors import ConfigError
from broker.journal.layout import CAPTURE, STATE
from broker.journal.options import JournalOptions
from broker.journal.recorder import Recorder
from broker.journal.tap import FLUSH_S, Tap

log = logging.getLogger("headgate")

RETRY_S: Final = 30.0
"""How long after the writer gave up, for a full disk or so, it is tried again."""


class Loop(Protocol):
    """An event loop: asyncio's, or one of ours."""

    def add_reader(self, fd: int, call: Callable[[], None], /) -> object:
        """Call whenever ``fd`` is readable."""

    def remove_reader(self, fd: int, /) -> object:
        """Forget ``fd``."""

    def call_soon(self, call: Callable[[], None], /) -> object:
        """Call in this turn or the next one."""

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> object:
        """Call after ``delay_s`` seconds."""


class Feed:
    """Records of one process, on their way to the process that writes.

    Args:
        options: where to, and what. loop: for timers. ended: told ``off: REASON`` when the writer had to give up; it is
            tried again every ``RETRY_S``.

    Attributes:
        active: records are taken at present; False before ``start``, after ``stop``, when the writer had to give up.
        both: what is sent is wanted, too (``capture = both``).
        recorder: where records go; None before ``start`` and after ``stop``.
    """

    def __init__(self, options: JournalOptions, loop: Loop, ended: Callable[[str], None]) -> None:
        self.active = False
        self.both = options.capture == "both"
        self.recorder: Recorder | None = None
        self._options = options
        self._loop = loop
        self._ended = ended
        self._scheduled = False
        self._timing = False

    def start(self) -> None:
        """Begin, on a running loop; the writer's process is started.

        Raises:
            ConfigError: records cannot be written there.
        """
        self.recorder = recorder = Recorder(self._options, on_state=self._state)
        self._tap = Tap(recorder)
        try:
            recorder.start()
        except BaseException:
            self.recorder = None
            recorder.close(0.0)
            raise
        self._loop.add_reader(recorder.fileno(), self._poll)
        self._tell_on()

    def _tell_on(self) -> None:
        facts = {"state": "on", "capture": self._options.capture, "payload": self._options.payload}
        self.note(STATE, CAPTURE, facts)

    def end(self, reason: str) -> Recorder | None:
        """Hand everything over; returns the recorder, which is to be closed, None when there is none (any more)."""
        recorder, self.recorder = self.recorder, None
        if recorder is None:
            return None
        self._loop.remove_reader(recorder.fileno())
        if self.active:
            self.note(STATE, CAPTURE, {"state": "off", "reason": reason})
        self.active = False
        self._tap.flush()
        return recorder

    def note(
        self,
        kind: int,
        topic: str,
        facts: dict[str, Any],
        wire: list[bytes] | tuple[bytes, ...] = (),
        **mark: int,
    ) -> None:
        """One record; see ``Tap.note``."""
        self._tap.note(kind, topic, facts, wire, **mark)
        self._soon()

    def peer(self, name: str, transport: int, role: str, **facts: Any) -> int:
        """See ``Tap.peer``."""
        self._soon()
        return self._tap.peer(name, transport, role, **facts)

    def forget(self, number: int) -> None:
        """See ``Tap.forget``."""
        self._tap.forget(number)

    def _state(self, state: str) -> None:
        self.active = state == "on"
        if state.startswith("off:"):
            self._ended(state)
            self._loop.call_later(RETRY_S, self._start_again)

    def _start_again(self) -> None:
        recorder = self.recorder
        if recorder is None or self.active:
            return
        try:
            if not recorder.gone:  # ``start`` would wait for the former writer
                raise ConfigError("the former writer is still at work")
            recorder.start()
        except ConfigError as error:
            log.info("journal: %s; it is tried again in %g s", error, RETRY_S)
            self._loop.call_later(RETRY_S, self._start_again)
        else:
            log.warning("journal: %s records again into %s", self._options.writer, self._options.directory)
            self._tell_on()

    def _soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """The end of a turn: what it brought is dated."""
        self._scheduled = False
        self._tap.end_batch()
        self._arm()

    def _flush(self) -> None:
        self._timing = False
        if self.recorder is not None:
            self._tap.flush()
            self._arm()

    def _poll(self) -> None:
        if self.recorder is not None:
            self.recorder.poll()
            self._arm()

    def _arm(self) -> None:
        if not self._timing and self.recorder is not None and self._tap.waiting:
            self._timing = True
            self._loop.call_later(FLUSH_S, self._flush)
