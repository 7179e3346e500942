"""kill -9 at any moment: what becomes bronze does so once, whoever reads the journal.

Spark is not here. What it promises a stream is: where a batch ends is written down before the batch begins, and a batch
of which its end was not written down is done again.
"""

import json
import multiprocessing
import os
import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from broker import atomic
from gateway.pipeline import bronze, spans, verify
from gateway.pipeline.warehouse import Warehouse, until_it_passes
from tests.live import segments
from tests.spark.talk import PEERS, said

KILLS = 20
SEGMENT = 200
STEP_S = 0.02


def ingesting(journal: str, place: str, begun: Connection) -> None:
    """`ingest` again and again."""
    begun.send(None)
    while True:
        bronze.bring(bronze.write, journal, Warehouse(place))


def streaming(journal: str, place: str, begun: Connection) -> None:
    """Batches as Spark makes them, of a checkpoint as it has it."""
    begun.send(None)
    warehouse, log = Warehouse(place), Path(place, "_checkpoint")
    log.mkdir(exist_ok=True)
    while True:
        number = sum(1 for _each in log.glob("*.end"))
        start = json.loads((log / f"{number - 1}.end").read_text()) if number else {}
        planned = log / f"{number}.begun"
        if not planned.exists():
            until = spans.latest(journal, start, 20_000)
            if until == start:
                continue
            atomic.write(planned, json.dumps(until).encode())
        until = json.loads(planned.read_text())
        name, table = "stream:1", warehouse.at("messages")
        if table.done(name) < number:
            how = bronze.How(table.place)
            written = bronze.write(spans.plan(journal, start, until), how)
            bronze.judge(written, how)
            changed = {writer: at for writer, at in until.items() if at != start.get(writer)}
            until_it_passes(lambda: bronze.commit(warehouse, written, start, changed, {name: number}))  # noqa: B023
        atomic.write(log / f"{number}.end", json.dumps(until).encode())


@pytest.mark.patient
@pytest.mark.timeout(300)
@pytest.mark.parametrize("job", [ingesting, streaming])
def test_killed_at_twenty_moments_every_record_is_there_once(job, bare: Path, tmp_path: Path) -> None:
    import shutil

    warehouse = Warehouse(shutil.copytree(bare, tmp_path / "warehouse"))
    journal, chance = tmp_path / "journal", random.Random(job.__name__)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "deltalake", "pyarrow.parquet", "gateway.pipeline.arrow"])
    count = 0

    def grow() -> None:
        nonlocal count
        for writer in ("rank0", "rank1"):
            segments.write(journal, writer, said(SEGMENT, count), count, per_block=20, peers=PEERS)
        count += SEGMENT

    for _kill in range(KILLS):
        grow()
        here, there = context.Pipe()
        child = context.Process(target=job, args=(str(journal), str(warehouse.root), there))
        child.start()
        here.recv()
        child.join(chance.randrange(20) * STEP_S)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        rows = warehouse.scan("messages", ["writer", "seq"])
        assert rows.group_by(["writer", "seq"]).aggregate([]).num_rows == rows.num_rows
    here, there = context.Pipe()
    child = context.Process(target=job, args=(str(journal), str(warehouse.root), there))
    child.start()
    while warehouse.scan("messages", ["seq"]).num_rows < 2 * count:
        assert child.is_alive()
        child.join(STEP_S)
    child.kill()
    child.join()
    report = verify.verify(journal, warehouse)
    assert (report.ok, report.rows, report.total("behind")) == (True, 2 * count, 0), report.verdict
