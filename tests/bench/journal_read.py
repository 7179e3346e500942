"""Reading a journal: all columns by numpy with CRC, beside a plain read of the same bytes and a Python loop.

CPU of this process, one core. The file is in the page cache. Requests, responses and events of 2000 clients, 164 bytes
a record; text columns are views into the bodies, as every reader gets them. The Python loop is what ``journal show``
does.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from broker.journal.reading.blocks import walk
from broker.journal.reading.columns import batches, decode, rows_of
from broker.journal.reading.peers import Peers
from broker.journal.reading.records import records_of
from broker.wire.message import event, request, response
from tests.bench.targets import Row
from tests.bench.works import Bench, say
from tests.live.segments import T0, Rec, block, flux, header, name_of, peer

ROWS_PER_BLOCK = 4096
DISTINCT_BLOCKS = 6
REPEATS = 30
"""Each distinct block stands so often in the file: making them costs more than reading them."""
CLIENTS = 2000
READ_BYTES = 1 << 20
LOOP_BLOCKS = 4
TOPICS = ("kvs.lookup", "sched.alloc", "job-ingest.submit", "echo.ping", "resource.status", "groups.update")


def traffic(dice: Random) -> list[Rec]:
    """The records of one block."""
    out = []
    for n in range(ROWS_PER_BLOCK):
        who = min(CLIENTS, int(dice.paretovariate(0.6)))
        asked = request(
            dice.choice(TOPICS), b'{"key":"value","n":%08d}\0' % n, matchtag=n % 1024 + 1, userid=1000 + who
        )
        asked.push_route(b"%036d" % who)
        message = dice.choice(
            (asked, asked, response(asked, b'{"ok":true}\0'), event("job.state", b"{}\0", sequence=n))
        )
        out.append(flux(T0 + 1000 * n, message, peer=who))
    return out


def journal(folder: Path) -> Path:
    """A segment of about 740 000 records."""
    dice = Random(6)
    distinct = [block(traffic(dice), at * ROWS_PER_BLOCK) for at in range(DISTINCT_BLOCKS)]
    who = block([peer(n, f"client-{n}") for n in range(1, CLIENTS + 1)], unnumbered=True)
    path = folder / name_of("rank0", 0)
    with path.open("wb") as file:
        file.write(header() + who)
        for _ in range(REPEATS):
            file.writelines(distinct)
    return path


def plain_read(path: Path) -> int:
    """Every byte into memory, nothing done with it."""
    with path.open("rb", buffering=0) as file:
        while file.read(READ_BYTES):
            pass
    return DISTINCT_BLOCKS * REPEATS * ROWS_PER_BLOCK


def columns(path: Path) -> int:
    """All columns, CRC checked."""
    peers = Peers()
    return sum(rows_of(decode(some, peers)) for some in batches(walk(path)))


def loop(path: Path) -> int:
    """The same fields in plain Python, of a few blocks."""
    peers, rows = Peers(), 0
    for number, each in enumerate(walk(path)):
        rows += sum(1 for _record in records_of(each, peers))
        if number == LOOP_BLOCKS:
            break
    return rows


def ns_a_row(work: Callable[[Path], int], path: Path) -> float:
    """CPU of this process."""
    began = time.process_time_ns()
    rows = work(path)
    return (time.process_time_ns() - began) / rows


def read(bench: Bench) -> list[Row]:
    """Decoding a journal into columns, beside a plain read of its bytes."""
    ratio, rate = Row("journal_decode"), Row("journal_decode_rate")
    with tempfile.TemporaryDirectory() as folder:
        path = journal(Path(folder))
        size = os.stat(path).st_size
        works = {"headgate": columns, "plain read": plain_read, "Python loop": loop}
        done: dict[str, list[float]] = {name: [] for name in works}
        for turn in range(bench.rounds + 1):
            for name, work in works.items():
                ns = ns_a_row(work, path)
                if turn:  # the first round warms the page cache
                    done[name].append(ns)
                    say(f"{name:<11} {ns:>8.1f} ns a row  {1e3 / ns:>6.2f} M rows/s")
    pairs = list(zip(done["headgate"], done["plain read"], strict=True))
    ratio.settle([ours / plain for ours, plain in pairs])
    rate.settle([1e3 / ours for ours in done["headgate"]])
    ratio.figures = {name: f"{min(values):.0f} ns" for name, values in done.items()}
    rate.figures = {name: f"{1e3 / min(values):.1f} M/s" for name, values in done.items()}
    ratio.raw = {"ns_a_row": done, "bytes": size}
    return [ratio, rate]


WORKS: dict[str, Callable[[Bench], list[Row]]] = {"journal_read": read}
