"""What a journal of real brokers says, and what their clients say: to be held against each other."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from broker.journal.reading.blocks import walk
from broker.journal.reading.records import Record, records
from broker.journal.reading.segments import segments
from broker.wire.message import Message, request
from broker.wire.payload import decode_json, encode_json
from tests.live.brokers import eventually
from tests.live.load import numbers
from tests.live.speaker import Speaker


def control(uri: str, word: str, payload: dict | None = None) -> Message:
    """The answer of ``journal.WORD``."""
    with Speaker(uri) as speaker:
        data = None if payload is None else encode_json(payload)
        return speaker.ask(request(f"journal.{word}", data, matchtag=1))


def status(uri: str) -> dict:
    """What ``journal.status`` says."""
    answer = control(uri, "status")
    assert answer.errnum == 0, answer.payload
    return dict(decode_json(answer.payload))


def all_handed(uri: str) -> None:
    """Until everything that was recorded before this call is the writer's: the request that asks is a record, too, and
    once it has been handed over, so has been all before it.
    """
    before = status(uri)["handed"]
    eventually(lambda: status(uri)["handed"] > before, timeout=20.0)


def all_written(uri: str) -> None:
    """Until everything that was recorded before this call is on disk."""
    all_handed(uri)
    told = status(uri)
    target = told["handed"] - told["shed"] - told["lost"]
    eventually(lambda: status(uri)["written"] >= target, timeout=20.0)


class Journal:
    """The records of one writer, read once."""

    def __init__(self, directory: Path, writer: str = "rank0") -> None:
        self.directory, self.writer = directory, writer
        self.records = list(records(directory, writer=writer))
        self.numbers = [
            number
            for segment in segments(directory, writer)
            for block in walk(segment.path)
            if block.numbered
            for number in range(block.first_seq, block.first_seq + block.count)
        ]

    def of(self, **wanted: object) -> list[Record]:
        """Records whose fields are as wanted, in the order of the journal."""
        return [
            each
            for each in self.records
            if all(getattr(each, name) == value for name, value in wanted.items())
        ]

    def state(self, topic: str) -> list[dict]:
        """What the records of this kind tell."""
        return [msgspec.json.decode(each.detail) for each in self.of(kind="state", topic=topic)]

    def check_numbers(self) -> int:
        """Numbers rise, and each that is missing stands in a record ``gap``, whose own number is its last one. Returns
        how many records were lost.
        """
        assert self.numbers == sorted(set(self.numbers)), "numbers do not rise"
        gaps = self.state("gap")
        assert all(gap["records"] == gap["last"] - gap["first"] + 1 for gap in gaps), gaps
        told = {number for gap in gaps for number in range(gap["first"], gap["last"])}
        missing = set(range(self.numbers[0], self.numbers[-1] + 1)) - set(self.numbers)
        assert missing == told, (sorted(missing ^ told)[:10], gaps)
        return sum(gap["records"] for gap in gaps)


def tags(found: Iterable[Record]) -> list[int]:
    """Their matchtags."""
    return [each.matchtag or 0 for each in found]


def payload_numbers(found: Iterable[Record]) -> list[int]:
    """The numbers in the payloads of ``tests.live.load``."""
    return [numbers(each.message())[1] for each in found]


def once_each(seen: list[int], first: int, count: int) -> None:
    """``count`` numbers from ``first`` on, each once and in order."""
    assert seen == list(range(first, first + count)), (len(seen), count, Counter(seen).most_common(3))


def some_once(seen: list[int], first: int, count: int) -> int:
    """Of ``count`` numbers from ``first`` on none twice, all in order; returns how many are missing."""
    assert seen == sorted(set(seen)), Counter(seen).most_common(3)
    assert not seen or (seen[0] >= first and seen[-1] < first + count)
    return count - len(seen)


def ended(pid: int) -> bool:
    """Whether a process that is not ours has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def mode_of(path: Path) -> int:
    return os.stat(path).st_mode & 0o7777
