"""denied: what was refused for want of rights; errors: what failed otherwise."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import DENIED, ERRNO_MAX, ERRORS
from gateway.pipeline.tables.calls import answerable, calls, legs
from gateway.pipeline.tables.endpoints import resolved
from gateway.pipeline.tables.rpc import of_calls
from gateway.pipeline.tables.shape import (
    ENODATA,
    POLICY,
    begin,
    bucket,
    conform,
    day,
    fact,
    of_broker,
    service,
)

LINK: Final = "denied.link"
"""Topic of the STATE record of a refused link: {"address", "uid", "errno", "reason"}."""
WINDOW_S: Final = 60


def denied(bronze: DataFrame) -> DataFrame:
    """``kind``: ``web`` came by WebSocket, ``link`` is a link that was not let in, ``answer`` a client's service said
    it, anything else is a ``request``. A broker that refuses says so once, wherever the request came from.
    """
    came = (fn.col("direction") == "in") & (fn.col("type") == "response") & ~of_broker()
    nobody = fn.lit(None).cast("bigint")
    answers = (
        bronze.where(came & fn.col("errnum").isin(*POLICY))
        .withColumn("peer", fn.col("via"))
        .withColumn("errno", fn.col("errnum"))
        .withColumn("kind", fn.lit("answer"))
        .withColumns(dict.fromkeys(("claimed", "userid", "rolemask"), nobody))
    )
    refused = refusals(bronze).where(_policy())
    return conform(refused, DENIED).unionByName(conform(answers, DENIED))


def _policy() -> Column:
    return fn.coalesce(fn.col("errno").isin(*POLICY), fn.lit(False))


def refusals(bronze: DataFrame) -> DataFrame:
    """Rows of requests and links that a broker refused, for whatever reason: with ``errno``, ``kind``, and whose."""
    link = (fn.col("kind") == "state") & (fn.col("topic") == LINK)
    web = fn.col("transport") == "websocket"

    def of_link(name: str, told: Column) -> Column:
        return fn.when(fn.col("link"), fn.coalesce(told, name)).otherwise(fn.col(name))

    return (
        bronze.where((fn.col("direction") == "denied") | link)
        .withColumn("link", link)
        .withColumn("peer", of_link("peer", fact("address")))
        .withColumn("userid", of_link("userid", fact("uid", "bigint")))
        .withColumn("errno", of_link("reason", fact("errno", "int")))
        .withColumn("kind", fn.when(fn.col("link"), "link").when(web, "web").otherwise("request"))
        .withColumn("topic", fn.when(~fn.col("link"), fn.col("topic")))
    )


def errors(bronze: DataFrame) -> DataFrame:
    """By minute, errno, topic and user, each failure once: see ``of_rpc``."""
    return of_rpc(of_calls(calls(legs(resolved(bronze)))), bronze)


def of_rpc(rpc: DataFrame, bronze: DataFrame) -> DataFrame:
    """The table from the rows of ``rpc``, and from the refusals in ``bronze`` that are no call of anybody's: at a
    client's own broker, or of requests that want no response. What is refused further on fails as a call where it
    entered. A stream that ends well (ENODATA) did not fail, nor did a notice that a client left (SERVICE.disconnect).
    """
    keys = ("rank", "topic", "errno", "kind", "userid")
    well = fn.col("streaming") & (fn.col("errnum") == ENODATA)
    answered = rpc.where((fn.col("errnum") > 0) & ~well).select(
        "ts_ns",
        "rank",
        "topic",
        fn.least("errnum", fn.lit(ERRNO_MAX)).alias("errno"),
        fn.lit("answer").alias("kind"),
        "userid",
    )
    no_call = ((fn.col("via_id") == 0) & ~of_broker()) | ~fn.coalesce(answerable(), fn.lit(False))
    notice = fn.coalesce(fn.col("topic").endswith(".disconnect"), fn.lit(False))
    refused = refusals(bronze).where(no_call & ~notice).select("ts_ns", *keys)
    grouped = (
        answered.unionByName(refused)
        .where(~_policy())
        .groupBy(bucket(WINDOW_S).alias("bucket"), *keys)
        .agg(fn.count("*").alias("n"))
    )
    return conform(
        grouped.withColumn("window", begin("bucket", WINDOW_S))
        .withColumn("service", service())
        .withColumn("dt", day(f"bucket * {WINDOW_S * 10**9}")),
        ERRORS,
    )
