"""``headgate journal tail``: the last records of a journal, and those that come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from broker.cli import options
from broker.cli.exits import FAILED, OK
from broker.cli.journal import lines, shared_options
from broker.cli.journal.show import Damages
from broker.cli.screen import Screen
from broker.journal.reading.blocks import Block, Damage, Damaged
from broker.journal.reading.follow import Follower, Missed, News
from broker.journal.reading.peers import Peers
from broker.journal.reading.records import Record, records_of

EXAMPLES = (
    "headgate journal tail                      the last ten records",
    "headgate journal tail -f DIR               and those that come, until Ctrl-C",
    "headgate journal tail -f -n 0 --type event --json DIR",
)


DICTIONARY_SLACK: Final = 4096
"""Entries of a block that may introduce peers and are not shown."""


class Tail:
    """Prints what is wanted as it comes."""

    def __init__(self, screen: Screen, chosen: shared_options.Wanted, keep: int) -> None:
        self._screen = screen
        self._wanted = chosen
        self._peers = Peers()
        self._keep = keep
        self._there: dict[str, deque[Block]] | None = {}
        """Of each writer the last blocks, until all that was there has been read."""
        self.damages = Damages("tail", screen)

    def take(self, news: News) -> None:
        """A block, damage, or segments that were deleted unread."""
        if isinstance(news, Missed):
            lost = f"{news.last - news.first + 1} records from {news.first} on"
            self._screen.note("journal tail", f"{news.writer}: {lost} were deleted before they could be read")
        elif isinstance(news, Damage):
            self.damages(news)
        elif self._there is None:
            for record in self._records(news):
                lines.show(self._screen, record)
        else:
            self._hold(self._there.setdefault(news.segment.writer, deque()), news)

    def release(self) -> None:
        """Print the last ones that were there, by time; from now on everything at once."""
        there, self._there = self._there or {}, None
        last: list[Record] = []
        for blocks in there.values():
            last += deque((each for block in blocks for each in self._records(block)), self._keep)
        last.sort(key=lambda each: each.ts_ns)
        for record in last[max(0, len(last) - self._keep) :]:
            lines.show(self._screen, record)

    def _hold(self, blocks: deque[Block], block: Block) -> None:
        """Keep a block; without a filter as few as hold what is asked for, for a record costs more than a block."""
        try:
            self._peers.learn(block)
        except Damaged as error:
            self.damages(error.damage)
            return
        blocks.append(block)
        if self._wanted == shared_options.Wanted():
            held = sum(each.count for each in blocks)
            while len(blocks) > 1 and held - blocks[0].count >= self._keep + DICTIONARY_SLACK:
                held -= blocks.popleft().count

    def _records(self, block: Block) -> Iterator[Record]:
        try:
            yield from filter(self._wanted, records_of(block, self._peers))
        except Damaged as error:
            self.damages(error.damage)


def tail(
    directory: shared_options.Directory = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="So many of what is there.")] = 10,
    types: shared_options.Type = None,
    topic: shared_options.Topic = None,
    user: shared_options.User = None,
    direction: shared_options.Direction = None,
    writer: shared_options.Writer = None,
    as_json: options.AsJson = False,
) -> int:
    """Print the last records of all writers, of their two newest segments; with -f go on over rotation and retention.

    Exit codes: 0 done, 1 something is damaged, 2 wrong options, 78 no journal, 130 Ctrl-C.
    """
    place = shared_options.directory(directory)
    if not follow:
        shared_options.check_writer(place, writer)
    shown = Tail(Screen(as_json), shared_options.wanted(types, topic, user, direction), count)
    follower = Follower(place, writer, start="newest")
    try:
        for news in follower.poll():
            shown.take(news)
        shown.release()
        if follow:
            for news in follower.blocks(lambda: False):
                shown.take(news)
    finally:
        follower.close()
    return FAILED if shown.damages.count else OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("journal tail", tail, EXAMPLES, argv)
