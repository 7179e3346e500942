"""Calls in two phases: within each file of bronze by numpy, and only what is left over through the hashed
window of ``calls``.

A file holds all records of its runs between its first and last number (``fits`` looks whether the files do), so
a call that ended in its file, or whose tag was taken there, is done; so is an orphan behind a request of its
key. Left over are responses in front of the first request of their key, and calls still open at the end. To
these come, as *fences*, the calls of other files that have one of their keys, ended: they were made while one
was open. Nothing but left-overs and fences is shuffled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from gateway.pipeline.tables import calls
from gateway.pipeline.tables.endpoints import resolved
from gateway.pipeline.tables.shape import NORESPONSE, STREAMING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_READ: Final = (
    "rank", "run", "origin", "matchtag", "seq", "ts_ns", "topic", "userid", "type", "direction", "flags", "aux1",
)  # fmt: skip
_CODED: Final = ("run", "origin", "topic", "type", "direction")
"""Read as dictionaries: numpy works on their codes."""
_DDL: Final = (
    "rank bigint, run string, origin string, matchtag bigint, what tinyint, call bigint, req_ns bigint, topic string, "
    "userid bigint, streaming boolean, first_ns bigint, last_ns bigint, errnum bigint, n_responses bigint, "
    "reused boolean, left boolean, key bigint"
)
_KEY: Final = ("key", "matchtag")
_TASKS_A_CORE: Final = 4
"""So many tasks for each core, if there are as many files: their lengths differ."""
_FENCE: Final = 1 << 40
"""Errnum of a fence's end; no response has it."""


@contextmanager
def matched(
    spark: SparkSession, paths: Sequence[str], bronze: DataFrame, *, origins: bool = True
) -> Iterator[DataFrame]:
    """What ``calls.calls`` gives for ``bronze``, which is read from ``paths``.

    Args:
        spark: where.
        paths: all files of ``bronze``, seen by all workers.
        bronze: the same as rows: for files that do not fit, or where deliveries or denials were captured.
        origins: False: leave ``origin`` and ``run`` null, which is cheaper, where the tables do not need them.
    """
    if not fits(paths):
        yield calls.calls(calls.legs(resolved(bronze)))
        return
    tasks = min(len(paths), spark.sparkContext.defaultParallelism * _TASKS_A_CORE)
    files = spark.createDataFrame([(path,) for path in paths], "path string").repartition(tasks)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from within(path, origins)

    found = files.mapInArrow(work, _DDL).persist()
    try:
        yield joined(found)
    finally:
        found.unpersist()


def fits(paths: Sequence[str]) -> bool:
    """Whether each file has one run, only ``in`` rows, and numbers that no other file of that run has between
    its own.
    """
    import pyarrow.parquet as pq

    spans: dict[str, list[tuple[int, int]]] = {}
    for path in paths:
        about = pq.read_metadata(path)
        names = [about.schema.column(place).name for place in range(about.num_columns)]
        span = [
            about.row_group(group).column(names.index(name)).statistics
            for group in range(about.num_row_groups)
            for name in ("run", "direction", "seq")
        ]
        if any(each is None or not each.has_min_max for each in span):
            return False
        runs = {value for each in span[0::3] for value in (each.min, each.max)}
        if len(runs) != 1 or {value for each in span[1::3] for value in (each.min, each.max)} != {"in"}:
            return False
        spans.setdefault(runs.pop(), []).append(
            (min(each.min for each in span[2::3]), max(each.max for each in span[2::3]))
        )
    return all(
        before[1] < behind[0]
        for each in spans.values()
        for before, behind in zip(sorted(each), sorted(each)[1:], strict=False)
    )


def joined(found: DataFrame) -> DataFrame:
    """What the files hold together: their calls, and those that the left-overs make."""
    left, done = found.where("left"), found.where(~fn.col("left"))
    keys = left.select(*_KEY, "rank", "run", "origin").distinct()
    fences = (
        done.where(fn.col("what") == calls.REQUEST)
        .drop("rank", "run", "origin")
        .join(fn.broadcast(keys), list(_KEY))
        .withColumn("end", fn.explode(fn.array(fn.lit(0), fn.lit(1))))
    )
    ends = fn.col("end") == 1
    columns = (
        "rank",
        "run",
        "origin",
        "matchtag",
        "seq",
        "ts_ns",
        "topic",
        "userid",
        "what",
        "streaming",
        "errnum",
        "weight",
    )
    legs = left.select(
        *columns[:4],
        (fn.col("call") * 2).alias("seq"),
        fn.col("req_ns").alias("ts_ns"),
        *columns[6:11],
        fn.lit(1).cast("bigint").alias("weight"),
    ).unionByName(
        fences.select(
            *columns[:4],
            (fn.col("call") * 2 + fn.col("end")).alias("seq"),
            fn.col("req_ns").alias("ts_ns"),
            "topic",
            "userid",
            fn.when(ends, calls.CAME_IN).otherwise(calls.REQUEST).cast("byte").alias("what"),
            "streaming",
            fn.when(ends, _FENCE).otherwise(0).cast("bigint").alias("errnum"),
            fn.lit(1).cast("bigint").alias("weight"),
        )
    )
    over = calls.calls(legs).where(fn.col("errnum") != _FENCE).withColumn("call", fn.expr("call DIV 2"))
    return done.select(*over.columns).unionByName(over)


def within(path: str, origins: bool) -> Iterator[pa.RecordBatch]:
    """Phase one, of one file: what is done, and what is left (``left``: legs, their number in ``call``, time in
    ``req_ns``).
    """
    import numpy as np
    import pyarrow as pa

    rows = _tracked(path)
    if not rows.num_rows:
        return
    codes, keys = _keys(rows)
    seq = rows["seq"].to_numpy()
    order = np.lexsort((seq, rows["matchtag"].to_numpy(), codes))
    rows, keys = rows.take(pa.array(order)), keys[codes[order]]
    yield from _batches(rows, keys, _walk(rows, codes[order]), origins)


def _tracked(path: str) -> pa.Table:
    """The rows that calls are made of; texts as dictionaries, one for the file."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, read_dictionary=list(_CODED)) as file:
        rows = file.read(columns=list(_READ)).unify_dictionaries().combine_chunks()
    wants = pc.equal(pc.bit_wise_and(rows["flags"], NORESPONSE), 0)
    asks = pc.and_(pc.equal(rows["type"], "request"), wants)
    tagged = pc.and_(pc.not_equal(rows["matchtag"], 0), pc.is_valid(rows["origin"]))
    kept = rows.filter(pc.and_(pc.or_(asks, pc.equal(rows["type"], "response")), tagged))
    found: pa.Table = kept.unify_dictionaries().combine_chunks()
    return found


def _keys(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """A small number for the origin of each row, and by that number a 64-bit hash of (run, origin)."""
    import numpy as np

    run = rows["run"][0].as_py()
    origin = rows["origin"].chunk(0)
    hashes = (
        blake2b(f"{run}/{each}".encode("utf-8", "surrogateescape"), digest_size=8)
        for each in origin.dictionary.to_pylist()
    )
    return origin.indices.to_numpy().astype(np.int64), np.array(
        [int.from_bytes(each.digest(), "little", signed=True) for each in hashes]
    )


def _walk(rows: pa.Table, codes: np.ndarray) -> dict[str, np.ndarray]:
    """Rows sorted by key and number -> for each: its call's row, whether it is an orphan, left over, a request;
    ``taken``.
    """
    import numpy as np
    import pyarrow.compute as pc

    size, place = len(codes), np.arange(len(codes))
    tags, errnum = rows["matchtag"].to_numpy(), rows["aux1"].to_numpy()
    asks = pc.equal(rows["type"], "request").to_numpy()
    first = np.ones(size, bool)
    first[1:] = (codes[1:] != codes[:-1]) | (tags[1:] != tags[:-1])
    begin = np.maximum.accumulate(np.where(first, place, 0))
    asked = np.maximum.accumulate(np.where(asks, place, -1))
    known = asked >= begin
    asked = np.where(known, asked, 0)
    streams = asks & ((rows["flags"].to_numpy() & STREAMING) != 0)
    ends = ~asks & ((errnum != 0) | ~(known & streams[asked]))
    before = np.cumsum(ends) - ends
    orphan = ~asks & known & (before > before[asked])
    answers = ~asks & known & ~orphan
    ended = np.bincount(asked[answers & ends], minlength=size) > 0
    next_ask = np.full(size, size)
    requests = np.flatnonzero(asks)
    next_ask[requests[:-1]] = requests[1:]
    last = np.append(np.flatnonzero(first)[1:], size)[np.cumsum(first) - 1]
    again = asks & (next_ask < last)
    is_open = asks & ~ended & ~again
    left = (~asks & ~known) | is_open | (answers & is_open[asked])
    return {
        "asked": asked, "asks": asks, "orphan": orphan, "answers": answers, "left": left, "streams": streams,
        "reused": again & ~ended,
    }  # fmt: skip


def _batches(
    rows: pa.Table, keys: np.ndarray, walk: dict[str, np.ndarray], origins: bool
) -> Iterator[pa.RecordBatch]:
    """Calls and orphans that are done, then what is left over, as ``_DDL`` has them."""
    import numpy as np

    size = rows.num_rows
    ts_ns, errnum = rows["ts_ns"].to_numpy(), rows["aux1"].to_numpy()
    answers, owner = walk["answers"], walk["asked"]
    of = owner[answers]
    runs = np.flatnonzero(np.diff(of, prepend=-1))
    firsts, lasts, errors, counts = (np.zeros(size, np.int64) for _ in range(4))
    if len(of):
        firsts[of[runs]] = np.minimum.reduceat(ts_ns[answers], runs)
        lasts[of[runs]] = np.maximum.reduceat(ts_ns[answers], runs)
        errors[of[runs]] = np.maximum.reduceat(errnum[answers], runs)
        counts = np.bincount(of, minlength=size)
    orphan = walk["orphan"]
    counts[orphan], firsts[orphan], lasts[orphan], errors[orphan] = (
        1,
        ts_ns[orphan],
        ts_ns[orphan],
        errnum[orphan],
    )
    done = (walk["asks"] & ~walk["left"]) | orphan
    values = {
        "first_ns": firsts,
        "last_ns": lasts,
        "errnum": errors,
        "n_responses": counts,
        "reused": walk["reused"],
    }
    yield _batch(rows, keys, walk, done, values, origins)
    errors = np.where(walk["asks"], 0, errnum)
    nothing = np.zeros(size, np.int64)
    values = {
        "first_ns": nothing,
        "last_ns": nothing,
        "errnum": errors,
        "n_responses": nothing,
        "reused": walk["reused"],
    }
    yield _batch(rows, keys, walk, walk["left"], values, True)


def _batch(
    rows: pa.Table,
    keys: np.ndarray,
    walk: dict[str, np.ndarray],
    which: np.ndarray,
    values: dict[str, np.ndarray],
    origins: bool,
) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    some = rows.filter(pa.array(which)).combine_chunks()
    asks = walk["asks"][which]
    what = np.where(asks, calls.REQUEST, calls.CAME_IN).astype(np.int8)
    silent = pa.array(values["n_responses"][which] == 0)
    of_request = pa.array(asks | walk["left"][which])
    size = some.num_rows

    def text(name: str) -> pa.Array:
        return some[name].combine_chunks().cast(pa.string()) if size else pa.array([], pa.string())

    def number(name: str) -> pa.Array:
        return pa.array(some[name].to_numpy())

    columns = {
        "rank": number("rank"),
        "run": text("run") if origins else pa.nulls(size, pa.string()),
        "origin": text("origin") if origins else pa.nulls(size, pa.string()),
        "matchtag": number("matchtag"),
        "what": pa.array(what),
        "call": number("seq"),
        "req_ns": pc.if_else(of_request, number("ts_ns"), None),
        "topic": text("topic"),
        "userid": pc.if_else(of_request, number("userid"), None),
        "streaming": pa.array(walk["streams"][which]),
        "first_ns": pc.if_else(silent, None, pa.array(values["first_ns"][which])),
        "last_ns": pc.if_else(silent, None, pa.array(values["last_ns"][which])),
        "errnum": pa.array(values["errnum"][which]),
        "n_responses": pa.array(values["n_responses"][which]),
        "reused": pa.array(values["reused"][which]),
        "left": pa.array(walk["left"][which]),
        "key": pa.array(keys[which]),
    }
    return pa.RecordBatch.from_pydict(columns)
