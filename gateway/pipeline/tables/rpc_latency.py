"""rpc_latency: a histogram of latencies by minute, rank and topic, and what could not be matched, by cause;
tree_latency: the sums at every broker that the calls passed.

Buckets are those of ``shape.bucket_end``: a percentile read from them is above the exact one by at most a sixteenth.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import RPC_LATENCY, TREE_LATENCY
from gateway.pipeline.tables.calls import CAME_IN, REQUEST, answerable, calls, legs
from gateway.pipeline.tables.endpoints import resolved
from gateway.pipeline.tables.rpc import since
from gateway.pipeline.tables.shape import (
    NORESPONSE,
    begin,
    bucket,
    bucket_end,
    conform,
    day,
    of_broker,
    service,
    total,
)

WINDOW_S: Final = 60
NO_RESPONSE, NO_REQUEST, UNWANTED, UNTAGGED, REUSED, UNSEEN = range(1, 7)
CAUSES: Final = {
    "unmatched_no_response": NO_RESPONSE,
    "not_captured": UNSEEN,
    "unmatched_no_request": NO_REQUEST,
    "unmatched_noresponse": UNWANTED,
    "unmatched_untagged": UNTAGGED,
    "reused_tags": REUSED,
}


def rpc_latency(bronze: DataFrame) -> DataFrame:
    """Latency until the first response, and six causes of having none.

    A call is counted in the minute of its request; an orphan in its own. Without a response a call is
    ``not_captured`` when nobody could see one, ``reused`` when its tag was taken while it was open, else
    ``no_response``; a stream cut short so is ``reused`` although it has a latency.
    """
    return of_calls(calls(legs(resolved(bronze))), bronze)


def of_calls(calls: DataFrame, bronze: DataFrame) -> DataFrame:
    """The table from what ``calls.calls`` gives, and from the requests in ``bronze`` that are not tracked."""
    return of_samples(samples(calls).unionByName(untracked(bronze)))


def samples(calls: DataFrame) -> DataFrame:
    """What the table needs of calls and orphans: where they count, latency or null, and ``cause`` of what is
    amiss.
    """
    orphan, silent = fn.col("what") == CAME_IN, fn.col("n_responses") == 0
    return calls.where(((fn.col("what") == REQUEST) | orphan) & fn.col("entered")).select(
        bucket(WINDOW_S, "coalesce(req_ns, first_ns)").alias("bucket"),
        "rank",
        "topic",
        fn.when(~orphan, since("first_ns")).alias("lat_ns"),
        fn.when(orphan, NO_REQUEST)
        .when(fn.col("unseen"), UNSEEN)
        .when(fn.col("reused"), REUSED)
        .when(silent, NO_RESPONSE)
        .alias("cause"),
    )


def untracked(bronze: DataFrame) -> DataFrame:
    """Requests that clients sent and that no response can be found for: they want none, or have no tag or no origin."""
    unwanted = fn.col("flags").bitwiseAND(NORESPONSE) != 0
    entered = (fn.col("type") == "request") & (fn.col("direction") == "in") & ~of_broker()
    return bronze.where(entered & ~answerable()).select(
        bucket(WINDOW_S).alias("bucket"),
        "rank",
        "topic",
        fn.lit(None).cast("bigint").alias("lat_ns"),
        fn.when(unwanted, UNWANTED).otherwise(UNTAGGED).alias("cause"),
    )


def of_samples(samples: DataFrame) -> DataFrame:
    """The table from what ``samples`` and ``untracked`` give."""
    end = bucket_end(fn.col("lat_ns")).alias("le_ns")
    grouped = samples.groupBy("bucket", "rank", "topic", end).agg(
        fn.count("lat_ns").alias("n"),
        fn.coalesce(total("lat_ns"), fn.lit(0)).alias("sum_ns"),
        fn.max("lat_ns").alias("max_ns"),
        *(fn.count_if(fn.col("cause") == cause).alias(name) for name, cause in CAUSES.items()),
    )
    return conform(
        grouped.withColumn("window", begin("bucket", WINDOW_S))
        .withColumn("service", service())
        .withColumn("dt", day(f"bucket * {WINDOW_S * 10**9}")),
        RPC_LATENCY,
    )


def tree_latency(bronze: DataFrame) -> DataFrame:
    """What each broker saw of the calls that passed it; between two neighbours the sums of one are those of the same
    calls as the other's, so that their difference is the time that the step took, whatever their clocks say.
    """
    return at_brokers(calls(legs(resolved(bronze))))


def at_brokers(calls: DataFrame) -> DataFrame:
    """The same from what ``calls.calls`` gives."""
    took = since("first_ns")
    answered = calls.where((fn.col("what") == REQUEST) & took.isNotNull())
    grouped = answered.groupBy(
        bucket(WINDOW_S, "req_ns").alias("bucket"), "rank", "source", "target", "topic"
    ).agg(
        fn.count("*").alias("n"),
        total(took).alias("sum_ns"),
        fn.max(took).alias("max_ns"),
    )
    return conform(
        grouped.withColumn("window", begin("bucket", WINDOW_S))
        .withColumn("service", service())
        .withColumn("dt", day(f"bucket * {WINDOW_S * 10**9}")),
        TREE_LATENCY,
    )
