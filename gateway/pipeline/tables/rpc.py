"""rpc: every call that wanted a response, where it entered the tree, with what came of it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import RPC
from gateway.pipeline.tables.calls import REQUEST, calls, legs
from gateway.pipeline.tables.endpoints import resolved
from gateway.pipeline.tables.shape import conform, day, moment, service


def rpc(bronze: DataFrame) -> DataFrame:
    """One row for each tagged request that a client made; without a response ``n_responses`` is 0, latencies and
    errnum null.

    A clock that stepped back between request and response makes a latency 0, not negative.
    """
    return of_calls(calls(legs(resolved(bronze))))


def of_calls(calls: DataFrame) -> DataFrame:
    """The table from what ``calls.calls`` gives."""
    answered = fn.col("n_responses") > 0
    outcome = (
        fn.when(answered, "answered")
        .when(fn.col("unseen"), "not captured")
        .when(fn.col("reused"), "reused")
        .otherwise("unanswered")
    )
    return conform(
        calls.where((fn.col("what") == REQUEST) & fn.col("entered"))
        .withColumn("ts_ns", fn.col("req_ns"))
        .withColumn("req_ts", moment())
        .withColumn("service", service())
        .withColumn("lat_ns", since("first_ns"))
        .withColumn("last_ns", since("last_ns"))
        .withColumn("errnum", fn.when(answered, fn.col("errnum")))
        .withColumn("outcome", outcome)
        .withColumn("dt", day()),
        RPC,
    )


def since(ns: str) -> Column:
    """Time since the request, never negative."""
    return fn.when(fn.col(ns).isNotNull(), fn.greatest(fn.col(ns) - fn.col("req_ns"), fn.lit(0)))
