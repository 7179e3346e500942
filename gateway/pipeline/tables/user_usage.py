"""user_usage: what each user did in a day."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import USER_USAGE
from gateway.pipeline.tables.calls import calls, legs
from gateway.pipeline.tables.endpoints import resolved
from gateway.pipeline.tables.rpc import of_calls
from gateway.pipeline.tables.shape import conform


def user_usage(bronze: DataFrame) -> DataFrame:
    """What came in under a userid, what was refused, and how long its calls took; rows without a userid are
    nobody's.
    """
    return with_calls(bronze, of_calls(calls(legs(resolved(bronze)))))


def with_calls(bronze: DataFrame, rpc: DataFrame) -> DataFrame:
    """The table from bronze and from the rows of ``rpc``; additive: rows of disjoint parts may be added up."""
    came = fn.col("direction") == "in"
    flux = came & (fn.col("kind") == "flux")
    nothing = fn.lit(0).cast("bigint")
    seen = bronze.where(fn.col("direction") != "out").select(
        "dt",
        "userid",
        *(
            (flux & (fn.col("type") == name)).cast("bigint").alias(f"{name}s")
            for name in ("request", "response", "event")
        ),
        (fn.col("direction") == "denied").cast("bigint").alias("denied"),
        fn.when(came, fn.col("payload_len")).otherwise(0).alias("payload_bytes"),
        fn.when(came, fn.col("wire_len")).otherwise(0).alias("wire_bytes"),
        nothing.alias("rpc_ns"),
    )
    called = rpc.where(fn.col("lat_ns").isNotNull()).select(
        "dt",
        "userid",
        *(nothing.alias(name) for name in seen.columns[2:-1]),
        fn.col("lat_ns").alias("rpc_ns"),
    )
    both = seen.unionByName(called).where(fn.col("userid").isNotNull())
    return conform(
        both.groupBy("dt", "userid").agg(*(fn.sum(name).alias(name) for name in seen.columns[2:])), USER_USAGE
    )
