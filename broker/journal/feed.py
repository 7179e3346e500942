"""A tap with its recorder on an event loop: what brokers and proxies record beside their own work.

What is noted in a turn of the loop is dated at the end of it, and a timer flushes while something waits. A broker of
Flux ends its batches in the corridor itself (``node.capture``).

A wing makes topic and JSON of its records before it hands them over. That is 1 of the 5 us that a record of NFP takes
it; the writer, which reads no record in Python (0.7 us each), would take 5 more to make them of the frames. And most of
what they say is known here alone: who the peer is, the task that the dispatcher read, the errno.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, Protocol

from broker.errors import ConfigError
from broker.journal.layout import CAPTURE, DENIED, DENIED_LINK, LEFT_OUT, STATE
from broker.journal.options import JournalOptions
from broker.journal.recorder import Recorder
from broker.journal.tap import FLUSH_S, Tap
from broker.rates import Ration

log = logging.getLogger("headgate")

RETRY_S: Final = 30.0
"""How long after the writer gave up, for a full disk or so, it is tried again."""
REFUSALS_PER_S: Final = 100
"""Links turned away that are recorded in a second, and at once after a pause; as many as a gateway reports of its
users. The rest is counted."""


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
        options: where to, and what.

    Attributes:
        active: records are taken at present; False before ``begin``, after ``end``, when the writer had to give up.
        both: what is sent is wanted, too (``capture = both``).
        recorder: where records go. tap: where they enter.
    """

    def __init__(self, options: JournalOptions) -> None:
        self.active = False
        self.both = options.capture == "both"
        self.recorder = Recorder(options, on_state=self._state)
        self.tap = Tap(self.recorder)
        self._options = options
        self._loop: Loop | None = None
        self._dating = False
        self._timing = False
        self._refused = Ration(REFUSALS_PER_S, monotonic())

    def begin(self, loop: Loop) -> None:
        """Begin, on a running loop; the writer's process is started.

        Raises:
            ConfigError: records cannot be written there.
        """
        try:
            self.recorder.start()
        except BaseException:
            self.recorder.close(0.0)
            raise
        self._loop = loop
        loop.add_reader(self.recorder.fileno(), self._poll)
        self._tell_on()

    def end(self, reason: str) -> bool:
        """Hand everything over, and record no more.

        Returns:
            whether the recorder is to be closed; False where it was never started, or has ended before.
        """
        loop, self._loop = self._loop, None
        if loop is None:
            return False
        loop.remove_reader(self.recorder.fileno())
        if self.active:
            self._tell_off(reason)
        self.active = False
        self.tap.flush()
        return True

    def _tell_on(self) -> None:
        """The first record behind a pause."""
        facts = {"state": "on", "capture": self._options.capture, "payload": self._options.payload}
        self.note(STATE, CAPTURE, facts)

    def _tell_off(self, reason: str) -> None:
        """The last record in front of a pause."""
        self.tell_left_out()
        self.note(STATE, CAPTURE, {"state": "off", "reason": reason})

    # -- records -------------------------------------------------------------------------------

    def note(
        self,
        kind: int,
        topic: str,
        facts: dict[str, Any],
        wire: list[bytes] | tuple[bytes, ...] = (),
        **mark: int,
    ) -> None:
        """One record, behind what was held back; see ``Tap.note``."""
        self.done()
        self.tap.note(kind, topic, facts, wire, **mark)
        self.date_soon()

    def done(self) -> None:
        """Note what is held back until its end is known, where somebody does so."""

    def peer(self, name: str, transport: int, role: str, **facts: Any) -> int:
        """See ``Tap.peer``."""
        self.date_soon()
        return self.tap.peer(name, transport, role, **facts)

    def forget(self, number: int) -> None:
        """See ``Tap.forget``."""
        self.tap.forget(number)

    def note_refused(self, facts: dict[str, Any], errnum: int = errno.EPERM, transport: int = 0) -> None:
        """A ``denied.link``: somebody was turned away at connect; counted only, beyond ``REFUSALS_PER_S``."""
        if self._refused.admits(monotonic()):
            self.tell_left_out()
            self.note(STATE, DENIED_LINK, facts, direction=DENIED, reason=errnum, transport=transport)

    def tell_left_out(self) -> None:
        """Record how many were turned away without a record; nothing when there were none."""
        if owed := self._refused.take_left_out():
            self.note(STATE, LEFT_OUT, {"records": owed, "topic": DENIED_LINK})

    # -- handing over --------------------------------------------------------------------------

    def _state(self, state: str) -> None:
        """The recorder's state changed, perhaps in the middle of a batch."""
        self.active = state == "on"

    def date_soon(self) -> None:
        """Have what this turn of the loop brought dated at its end."""
        if not self._dating and self._loop is not None:
            self._dating = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """The end of a turn: what it brought is dated."""
        self._dating = False
        self.end_batch()

    def end_batch(self) -> None:
        """Date what was noted since the last time, and hand it on when it is enough."""
        self.tap.end_batch()
        if not self._timing and self.tap.waiting:
            self._arm()

    def _flush(self) -> None:
        self._timing = False
        if self._loop is not None:
            self.tap.flush()
            self._arm()

    def _poll(self) -> None:
        """The writer said something, or died, which nobody else might notice for long; or it takes more."""
        self.recorder.poll()
        self._arm()

    def _arm(self) -> None:
        if not self._timing and self._loop is not None and self.tap.waiting:
            self._timing = True
            self._loop.call_later(FLUSH_S, self._flush)


class WingFeed(Feed):
    """The feed of a wing, which nobody can turn on again by hand: a writer that gave up is tried again every
    ``RETRY_S``.
    """

    def _state(self, state: str) -> None:
        super()._state(state)
        if state.startswith("off:") and self._loop is not None:
            self._gave_up(state)
            self._loop.call_later(RETRY_S, self._start_again)

    def _gave_up(self, state: str) -> None:
        """Log that it is ``off: REASON``."""
        log.error("the journal of %s is %s", self._options.writer, state)

    def _start_again(self) -> None:
        if self._loop is None or self.active:
            return
        try:
            if not self.recorder.gone:  # ``start`` would wait for the former writer
                raise ConfigError("the former writer is still at work")
            self.recorder.start()
        except ConfigError as error:
            log.info("journal: %s; it is tried again in %g s", error, RETRY_S)
            self._loop.call_later(RETRY_S, self._start_again)
        else:
            log.warning("journal: %s records again into %s", self._options.writer, self._options.directory)
            self._tell_on()
