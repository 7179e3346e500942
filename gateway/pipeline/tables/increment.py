"""What one batch of a stream adds to each table, and what it leaves open for the next one.

Rows go into gold when they are settled: a call when it has ended, its tag was taken, or it is older than
``EXPIRES_S``; a job when its final status passed. Until then the rows they are made of are *carried*: the
request of each open call with its first and last response (the last stands for those between, by ``weight``),
the last event of each sequence, the rows of open jobs, the final row of those that have ended (so that what
follows is known to be late), and the hop of each peer. What is carried is kept by the number of the last
addition to bronze (``Kept``): a step that is done again starts from the same.

Tables of sums (``traffic``, ``rpc_latency``, ``errors`` and the like) get several rows for one key this way: they add
up, percentiles included, and ``batch`` makes one row of them. ``order_check`` compares
two ends of a broker that need not lie in one batch: only ``batch`` makes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as fn

from gateway.pipeline.schema import MESSAGES
from gateway.pipeline.tables import calls, endpoints, event_gaps, job_outcomes, rpc, rpc_latency, user_usage
from gateway.pipeline.tables.denied import denied, of_rpc
from gateway.pipeline.tables.notifications import notifications
from gateway.pipeline.tables.shape import POLICY, fact, of_broker
from gateway.pipeline.tables.slow import slow
from gateway.pipeline.tables.traffic import traffic, tree_traffic

EXPIRES_S: Final = 86_400.0
"""A call or job that is open for so long goes into gold as it is; what comes later has no request."""
_KEY: Final = ("rank", "run", "origin", "matchtag")
LEGS_DDL: Final = (
    "rank bigint, run string, origin string, matchtag bigint, seq bigint, ts_ns bigint, topic string, userid bigint, "
    "what tinyint, streaming boolean, errnum bigint, entered boolean, source string, target string, unseen boolean, "
    "weight bigint"
)
_EVENT: Final = ("rank", "writer", "run", "peer", "peer_id", "type", "direction", "event_seq", "seq", "ts_ns")
_JOB: Final = ("kind", "detail", "ts_ns", "writer", "seq")
"""What ``event_gaps`` and ``job_outcomes`` look at; the rest of a row is not carried."""
_DDL: Final = {
    "calls": LEGS_DDL,
    "events": ", ".join(column.ddl for column in MESSAGES.columns if column.name in _EVENT),
    "jobs": ", ".join(column.ddl for column in MESSAGES.columns if column.name in _JOB),
    "hops": endpoints.HOPS_DDL,
}


@dataclass(frozen=True)
class Carried:
    """What is open: ``calls`` as ``calls.legs`` gives them, the last ``events``, rows of ``jobs``, ``hops`` of
    peers.
    """

    calls: DataFrame
    events: DataFrame
    jobs: DataFrame
    hops: DataFrame


def nothing(spark: SparkSession) -> Carried:
    """What the first batch starts from."""
    return Carried(**{name: spark.createDataFrame([], ddl) for name, ddl in _DDL.items()})


@contextmanager
def increment(rows: DataFrame, before: Carried) -> Iterator[tuple[dict[str, DataFrame], Carried]]:
    """What ``rows``, those of one batch, add to each table, and what is open behind them; valid inside.

    The caller caches ``rows`` where reading them twice costs something. Tables that the batch cannot add to are
    left out: each costs a job of Spark, which takes longer than what is in it.
    """
    held = _held(rows)
    limit_ns = (held["newest_ns"] or 0) - int(EXPIRES_S * 1e9)
    tables = {name: build(rows) for name, build in _OF_ROWS.items() if held[name]}
    hops, events, jobs = before.hops, before.events, before.jobs
    resolved = rows
    if held["others"]:
        hops = endpoints.fewest(hops.unionByName(endpoints.hops(rows)))
        resolved = endpoints.resolved(rows, hops)
        hops = hops.where(fn.col("seen_ns") >= limit_ns)
    legs = before.calls.unionByName(calls.legs(resolved))
    found = told_open(calls.calls(legs), rows).persist()
    carried = fn.col("open") & (fn.col("req_ns") >= limit_ns)
    settled, opened = found.where(~carried), found.where(carried)
    tables["rpc"] = rpc.of_calls(settled)
    samples = rpc_latency.samples(settled).unionByName(rpc_latency.untracked(rows))
    tables["rpc_latency"] = rpc_latency.of_samples(samples)
    tables["tree_latency"] = rpc_latency.at_brokers(settled)
    tables["errors"] = of_rpc(tables["rpc"], rows)
    tables["user_usage"] = user_usage.with_calls(rows, tables["rpc"])
    if held["events"]:
        events = events.unionByName(rows.select(*events.columns))
        tables["event_gaps"] = event_gaps.event_gaps(events)
        events = last_events(events).where(fn.col("ts_ns") >= limit_ns)
    if held["jobs"]:
        fresh = rows.select(*jobs.columns)
        tables["job_outcomes"] = job_outcomes.job_outcomes(ended_jobs(jobs, fresh))
        jobs = open_jobs(jobs.unionByName(fresh)).where(fn.col("ts_ns") >= limit_ns)
    try:
        yield tables, Carried(open_legs(legs, opened), events, jobs, hops)
    finally:
        found.unpersist()


_OF_ROWS: Final = {
    "traffic": traffic, "tree_traffic": tree_traffic, "denied": denied, "notifications": notifications, "slow": slow,
}  # fmt: skip
"""Tables that need nothing but the rows of the batch."""


def _held(rows: DataFrame) -> Row:
    """How many rows there are for each table, ``newest_ns``, and ``others``: those that did not come in."""
    kind, direction = fn.col("kind"), fn.col("direction")
    return rows.agg(
        fn.max("ts_ns").alias("newest_ns"),
        fn.count("*").alias("traffic"),
        fn.count_if(of_broker()).alias("tree_traffic"),
        fn.count_if((direction == "denied") | (kind == "state") | fn.col("errnum").isin(*POLICY)).alias(
            "denied"
        ),
        fn.count_if(kind == "oslo").alias("notifications"),
        fn.count_if(kind == "state").alias("slow"),
        fn.count_if(direction != "in").alias("others"),
        fn.count_if(fn.col("type") == "event").alias("events"),
        fn.count_if(kind == "nfp").alias("jobs"),
    ).first()


def told_open(found: DataFrame, rows: DataFrame) -> DataFrame:
    """What ``calls.calls`` gives with ``open``: a call that waits for a response that could be seen.

    Of a call that is *unseen* only its refusal is recorded, and that right behind the request: it is open as long
    as nothing else came behind it. ``rows`` are the newest ones.
    """
    newest = rows.groupBy("rank", "run").agg(fn.max("seq").alias("newest"))
    behind = fn.coalesce(fn.col("newest") > fn.col("call"), fn.lit(False))
    waits = (fn.col("what") == calls.REQUEST) & ~calls.ended() & ~fn.col("reused")
    return (
        found.join(fn.broadcast(newest), ["rank", "run"], "left")
        .withColumn("open", waits & ~(fn.col("unseen") & behind))
        .drop("newest")
    )


def open_legs(legs: DataFrame, opened: DataFrame) -> DataFrame:
    """The rows of the open calls, at most five each: the request, and of each kind of response the first and
    the last.
    """
    waiting = opened.select(*_KEY, fn.col("call").alias("from_seq"))
    theirs = legs.join(waiting, list(_KEY)).where(fn.col("seq") >= fn.col("from_seq"))
    asked = fn.col("what") <= calls.REFUSED
    same = ("streaming", "errnum", "topic", "userid", "entered", "source", "target", "unseen")
    few = (
        theirs.where(~asked)
        .groupBy(*_KEY, "what")
        .agg(
            *(fn.min_by(name, "seq").alias(name) for name in same),
            fn.struct(
                fn.min("seq").alias("seq"),
                fn.min("ts_ns").alias("ts_ns"),
                fn.lit(1).cast("bigint").alias("weight"),
            ).alias("one"),
            fn.struct(
                fn.max("seq").alias("seq"),
                fn.max("ts_ns").alias("ts_ns"),
                (fn.sum("weight") - 1).alias("weight"),
            ).alias("two"),
        )
        .withColumn("leg", fn.explode(fn.filter(fn.array("one", "two"), lambda leg: leg["weight"] > 0)))
        .select(*_KEY, "what", *same, "leg.*")
    )
    return theirs.where(asked).select(*legs.columns).unionByName(few)


def last_events(seen: DataFrame) -> DataFrame:
    """The row of the last event of each sequence."""
    events = event_gaps.numbered(seen)
    last = events.groupBy("rank", "writer", "run", "source").agg(
        fn.max_by(fn.struct(*seen.columns), "seq").alias("row")
    )
    return last.select("row.*")


def ended_jobs(before: DataFrame, rows: DataFrame) -> DataFrame:
    """All rows of the jobs that reached a final status in ``rows``, and had not before."""
    ids = fn.col("uuid")
    seen = _jobs(before.unionByName(rows))
    known = _jobs(before).where(_final()).select(ids).distinct()
    fresh = _jobs(rows).where(_final()).select(ids).distinct().join(known, "uuid", "left_anti")
    return seen.join(fresh, "uuid", "left_semi").select(*rows.columns)


def open_jobs(seen: DataFrame) -> DataFrame:
    """All rows of jobs without a final status, the final one of the others."""
    jobs = _jobs(seen)
    ended = jobs.where(_final()).select("uuid").distinct()
    last = (
        jobs.where(_final())
        .groupBy("uuid")
        .agg(fn.min_by(fn.struct(*seen.columns), fn.struct("ts_ns", "seq")).alias("row"))
    )
    return jobs.join(ended, "uuid", "left_anti").select(*seen.columns).unionByName(last.select("row.*"))


def settled_jobs(rows: DataFrame, since_ns: int) -> DataFrame:
    """All rows of the jobs that ended, or that were last heard of before ``since_ns``."""
    jobs = _jobs(rows)
    old = (
        jobs.groupBy("uuid")
        .agg(fn.max("ts_ns").alias("heard"))
        .where(fn.col("heard") < since_ns)
        .select("uuid")
    )
    ended = jobs.where(_final()).select("uuid").union(old).distinct()
    return jobs.join(ended, "uuid", "left_semi").select(*rows.columns)


def _jobs(rows: DataFrame) -> DataFrame:
    return (
        rows.where(fn.col("kind") == "nfp").withColumn("uuid", fact("uuid")).where(fn.col("uuid").isNotNull())
    )


def _final() -> Column:
    return fn.coalesce(fact("status").isin(*job_outcomes.FINAL), fn.lit(False))


class Kept:
    """What is carried, on disk: ``DIR/NUMBER/{calls,events,jobs,hops}.parquet``.

    Args:
        directory: made when something is kept.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def numbers(self) -> list[int]:
        """Behind which additions to bronze something is kept, in order."""
        names = [path.name for path in self.directory.iterdir()] if self.directory.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())

    def behind(self, spark: SparkSession, number: int) -> Carried:
        """What was open behind an addition to bronze."""
        earlier = [each for each in self.numbers() if each <= number]
        if not earlier:
            return nothing(spark)
        place = self.directory / str(earlier[-1])
        return Carried(
            **{
                name: spark.read.schema(ddl).parquet(str(place / f"{name}.parquet"))
                for name, ddl in _DDL.items()
            }
        )

    def save(self, number: int, carried: Carried) -> None:
        """Keep what is open behind an addition, whole or not at all."""
        import pyarrow.parquet as pq

        place, fresh = self.directory / str(number), self.directory / f".{number}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for name in _DDL:
            pq.write_table(getattr(carried, name).toArrow(), fresh / f"{name}.parquet", compression="zstd")
        shutil.rmtree(place, ignore_errors=True)
        fresh.rename(place)

    def forget(self, before: int) -> None:
        """Delete what nobody who begins behind an addition needs."""
        for old in [each for each in self.numbers() if each <= before][:-1]:
            shutil.rmtree(self.directory / str(old), ignore_errors=True)
