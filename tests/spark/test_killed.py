"""Jobs that are killed and begun again as processes, of Spark and all: every record is there once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from gateway.pipeline import verify
from gateway.pipeline.warehouse import Warehouse
from tests.live import segments
from tests.spark.talk import PEERS, adds_up, numbers, said, seqs, talked


def everything_in(warehouse: Warehouse) -> set[Path]:
    """All files; a folder of a job that goes meanwhile is passed over."""
    return {Path(place, name) for place, _, names in os.walk(warehouse.root) for name in names}


class Child:
    """`python -m gateway.pipeline` in a process group of its own: a kill takes driver, JVM and workers."""

    def __init__(self, journal: Path, warehouse: Path, errors: Path, *words: str, verb: str) -> None:
        self.errors = errors
        command = [sys.executable, "-m", "gateway.pipeline", verb, "-j", str(journal), "-w", str(warehouse)]
        self._out = errors.open("ab")
        self.process = subprocess.Popen(
            [*command, "--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=2", *words],
            stdout=subprocess.DEVNULL,
            stderr=self._out,
            start_new_session=True,
        )

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self._out.close()

    def kill_behind(self, files: int, warehouse: Warehouse) -> None:
        """As soon as so many files more were seen; or when there will be no more."""
        before = seen = everything_in(warehouse)
        changed = time.monotonic()
        while len(seen - before) < files and self.process.poll() is None:
            now = seen | everything_in(warehouse)
            if len(now) > len(seen):
                seen, changed = now, time.monotonic()
            elif len(seen) > len(before):
                quiet_s = QUIET_S if len(seen - before) > FILES // 2 else SETTLED_S
                if time.monotonic() > changed + quiet_s:
                    break
            time.sleep(0.005)
        self.kill()

    def until(self, met: Callable[[], bool], seconds: float = 200.0) -> None:
        deadline = time.monotonic() + seconds
        while not met():
            assert self.process.poll() is None, self.errors.read_text()[-2000:]
            assert time.monotonic() < deadline, "the condition was not met in time"
            time.sleep(0.01)


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def start(journal: Path, warehouse: Warehouse, *words: str, verb: str = "stream") -> Child:
        started.append(Child(journal, warehouse.root, tmp_path / "errors", *words, verb=verb))
        return started[-1]

    yield start
    for child in started:
        child.kill()


def files_of(warehouse: Warehouse) -> set[Path]:
    """The files of bronze, also those that are being written."""
    return set(warehouse.root.glob("messages/dt=*/*"))


@pytest.mark.timeout(420)
def test_a_stream_that_is_killed_and_told_to_leave_has_each_record_once(
    java, journal: Path, warehouse: Warehouse, children: Callable[..., Child]
) -> None:
    """kill -9 of the whole process group while a batch is being written, SIGTERM while gold is being made; the journal
    goes on meanwhile.
    """
    segments.write_many(journal, "rank0", said(3000), 500, per_block=50, peers=PEERS)
    path = segments.write(journal, "nfp", said(700), per_block=50, peers=PEERS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    child = children(journal, warehouse, "--available-now", "--max-bytes", "100k", "--bronze-only")
    child.until(lambda: bool(files_of(warehouse)))
    child.kill()
    held = seqs(warehouse)
    assert len(held) == len(set(held))
    path.write_bytes(whole)
    segments.write(journal, "rank0", said(200, 3000), 3000, per_block=50, peers=PEERS)

    child = children(journal, warehouse, "--trigger", "1")
    child.until(lambda: len(seqs(warehouse)) == 3900)
    child.process.terminate()
    assert child.process.wait(60) == 0, child.errors.read_text()[-2000:]
    before = warehouse.at("messages").files()
    assert warehouse.feed()["gold"] < warehouse.feed()["bronze"], "it takes longer"

    child = children(journal, warehouse, "--available-now")
    assert child.process.wait(300) == 0, child.errors.read_text()[-2000:]
    assert child.errors.read_text() == "", "Spark's words are kept from the terminal"
    assert warehouse.at("messages").files() == before
    report = verify.verify(journal, warehouse)
    assert report.ok, report.as_json()
    assert (report.rows, report.as_json()["behind"]) == (3900, 0)
    assert sum(warehouse.scan("traffic", ["n"])["n"].to_pylist()) == 3900
    assert numbers(warehouse) == list(range(len(numbers(warehouse))))
    told = [row for row in warehouse.scan("_runs").to_pylist() if row["job"] == "stream"]
    assert sum(row["rows_in"] for row in told) == 3900
    made = numbers(warehouse, "gold")
    assert len(made) == len(set(made))
    assert warehouse.feed()["gold"] == warehouse.feed()["bronze"]


FILES = 150
"""What a round of it writes, about: data, logs, and what Spark keeps."""
QUIET_S = 3.0
"""Without another file, behind most of them."""
SETTLED_S = 45.0
"""The same behind the first: a stream that has all it can have runs on, and some rounds write less than others."""
TURNS = 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("verb", ["stream", "batch"])
def test_killed_at_any_moment_every_record_is_in_each_table_once(
    java, journal: Path, warehouse: Warehouse, children: Callable[..., Child], verb: str
) -> None:
    """kill -9 of the whole group behind a file that dice choose among those of bronze, of gold and of the checkpoint;
    each round has records to bring in.
    """
    dice = Random(TURNS)
    for turn in range(TURNS):
        segments.write(journal, "rank0", talked(20 * turn, 20), 20 * turn, per_block=10, peers=PEERS)
        child = children(journal, warehouse, verb=verb)
        child.kill_behind(dice.randrange(1, FILES), warehouse)
        held = seqs(warehouse) if warehouse.root.joinpath("messages").exists() else []
        assert len(held) == len(set(held))
    words = ("--available-now",) if verb == "stream" else ()
    child = children(journal, warehouse, *words, verb=verb)
    assert child.process.wait(300) == 0, child.errors.read_text()[-2000:]
    assert seqs(warehouse) == list(range(20 * TURNS))
    assert verify.verify(journal, warehouse).ok
    adds_up(warehouse)
