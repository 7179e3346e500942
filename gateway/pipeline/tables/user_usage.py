"""user_usage: what each user did in a day."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import USER_USAGE
from gateway.pipeline.tables.calls import calls, legs
from gateway.pipeline.tables.denied import of_rpc, refusals
from gateway.pipeline.tables.endpoints import resolved
from gateway.pipeline.tables.rpc import of_calls
from gateway.pipeline.tables.shape import POLICY, conform, of_broker, total

_SUMS: Final = (
    "requests", "responses", "events", "denied", "errors", "payload_bytes", "wire_bytes",
)  # fmt: skip


def user_usage(bronze: DataFrame) -> DataFrame:
    """What came in under a userid, what was refused or failed, and how long its calls took; rows without a userid are
    nobody's.
    """
    return with_calls(bronze, of_calls(calls(legs(resolved(bronze)))))


def with_calls(bronze: DataFrame, rpc: DataFrame) -> DataFrame:
    """The table from bronze and from the rows of ``rpc``; additive: rows of disjoint parts may be added up."""
    flux = fn.col("kind") == "flux"
    came = bronze.where((fn.col("direction") == "in") & ~(flux & of_broker())).select(
        "dt",
        "userid",
        *(
            (flux & (fn.col("type") == name)).cast("bigint").alias(f"{name}s")
            for name in ("request", "response", "event")
        ),
        fn.col("payload_len").alias("payload_bytes"),
        fn.col("wire_len").alias("wire_bytes"),
    )
    refused = refusals(bronze).where(fn.col("errno").isin(*POLICY))
    parts = [
        came,
        refused.select("dt", "userid", fn.lit(1).alias("denied")),
        of_rpc(rpc, bronze).select("dt", "userid", fn.col("n").alias("errors")),
        rpc.where(fn.col("lat_ns").isNotNull()).select("dt", "userid", fn.col("lat_ns").alias("rpc_ns")),
    ]
    every = parts[0]
    for part in parts[1:]:
        every = every.unionByName(part, allowMissingColumns=True)
    sums = [fn.coalesce(fn.sum(name), fn.lit(0)).alias(name) for name in _SUMS]
    sums.append(fn.coalesce(total("rpc_ns"), fn.lit(0)).alias("rpc_ns"))
    return conform(every.where(fn.col("userid").isNotNull()).groupBy("dt", "userid").agg(*sums), USER_USAGE)
