"""Drawing the same thing again and again, for ``--watch``: in place on a terminal, one after the other elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from broker.cli.screen import Screen

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
"""The terminal's other page, cursor hidden: what was on the screen comes back at the end."""
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H\x1b[2J"


class Redraw:
    """Frames of one picture, for the time of a ``with`` block."""

    def __init__(self, screen: Screen, watch: bool) -> None:
        self._out = screen.out
        self._in_place: bool = watch and screen.rich

    def __enter__(self) -> Self:
        if self._in_place:
            self._out.write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._in_place:
            self._out.write(_LEAVE)
        self._out.flush()

    def frame(self, draw: Callable[[], None]) -> None:
        """Draw the next frame."""
        if self._in_place:
            self._out.write(_HOME)
        draw()
        self._out.flush()
