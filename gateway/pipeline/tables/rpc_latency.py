"""rpc_latency: percentiles by minute, rank and topic; and what could not be matched, by cause.

Percentiles are exact order statistics up to what ``percentile_approx`` of accuracy 10000 distinguishes: of a
group of fewer than 10000 calls the value at rank ceil(p * n), above that one whose rank is off by n / 10000 at
most.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import RPC_LATENCY
from gateway.pipeline.tables.calls import CAME_IN, REQUEST, calls, legs
from gateway.pipeline.tables.endpoints import resolved
from gateway.pipeline.tables.rpc import since
from gateway.pipeline.tables.shape import NORESPONSE, begin, bucket, conform, day, service

WINDOW_S: Final = 60
ACCURACY: Final = 10_000
PERCENTILES: Final = {"p50_ns": 0.5, "p95_ns": 0.95, "p99_ns": 0.99}
NO_RESPONSE, NO_REQUEST, UNWANTED, UNTAGGED, REUSED = range(1, 6)
CAUSES: Final = {
    "unmatched_no_response": NO_RESPONSE,
    "unmatched_no_request": NO_REQUEST,
    "unmatched_noresponse": UNWANTED,
    "unmatched_untagged": UNTAGGED,
    "reused_tags": REUSED,
}


def rpc_latency(bronze: DataFrame) -> DataFrame:
    """Latency until the first response, and five causes of having none.

    A call is counted in the minute of its request; an orphan in its own. Without a response a call is
    ``reused`` when its tag was taken while it was open, else ``no_response``; a stream cut short so is
    ``reused`` although it has a latency.
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
    return calls.where((fn.col("what") == REQUEST) | orphan).select(
        bucket(WINDOW_S, "coalesce(req_ns, first_ns)").alias("bucket"),
        "rank",
        "topic",
        fn.when(~orphan, since("first_ns")).alias("lat_ns"),
        fn.when(orphan, NO_REQUEST).when(fn.col("reused"), REUSED).when(silent, NO_RESPONSE).alias("cause"),
    )


def untracked(bronze: DataFrame) -> DataFrame:
    """Requests that came in and that no response can be found for: they want none, or have no tag or no origin."""
    unwanted = fn.col("flags").bitwiseAND(NORESPONSE) != 0
    unknown = (fn.col("matchtag") == 0) | fn.col("origin").isNull()
    return bronze.where(
        (fn.col("type") == "request") & (fn.col("direction") == "in") & (unwanted | unknown)
    ).select(
        bucket(WINDOW_S).alias("bucket"),
        "rank",
        "topic",
        fn.lit(None).cast("bigint").alias("lat_ns"),
        fn.when(unwanted, UNWANTED).otherwise(UNTAGGED).alias("cause"),
    )


def of_samples(samples: DataFrame) -> DataFrame:
    """The table from what ``samples`` and ``untracked`` give."""
    grouped = samples.groupBy("bucket", "rank", "topic").agg(
        fn.count("lat_ns").alias("n"),
        fn.percentile_approx("lat_ns", list(PERCENTILES.values()), ACCURACY).alias("at"),
        fn.max("lat_ns").alias("max_ns"),
        *(fn.count_if(fn.col("cause") == cause).alias(name) for name, cause in CAUSES.items()),
    )
    for place, name in enumerate(PERCENTILES):
        grouped = grouped.withColumn(name, fn.col("at")[place])
    return conform(
        grouped.withColumn("window", begin("bucket", WINDOW_S))
        .withColumn("service", service())
        .withColumn("dt", day(f"bucket * {WINDOW_S * 10**9}")),
        RPC_LATENCY,
    )
