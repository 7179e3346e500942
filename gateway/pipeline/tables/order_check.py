"""order_check: did messages between two endpoints go out in the order in which they came in (RFC 3, in-order
delivery)?

Only of runs that captured deliveries. The j-th message that came in with some identity (origin, destination,
type, matchtag, nodeid, errnum or sequence, topic) is the j-th that went out with it; what is compared is the order of
different ones. An event goes out to many at once, in one record: its destination is empty, its identity is its
sequence.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from gateway.pipeline.schema import ORDER_CHECK
from gateway.pipeline.tables.endpoints import resolved
from gateway.pipeline.tables.shape import conform, day, moment

PAIR: Final = ("rank", "run", "origin", "dest", "type")
_IDENTITY: Final = (*PAIR, "matchtag", "word", "topic", "nth")


def order_check(bronze: DataFrame) -> DataFrame:
    """``out_of_order``: messages that went out behind one that had come in after them; ``missing``: that never
    went out.
    """
    flux = bronze.where((fn.col("kind") == "flux") & (fn.col("direction") != "denied"))
    sides = _sides(flux)
    runs = flux.where(fn.col("direction") == "out").select("rank", "run").distinct()
    arrived = sides.where("arrived").join(fn.broadcast(runs), ["rank", "run"], "left_semi")
    left = sides.where(~fn.col("arrived")).select(*_IDENTITY, fn.col("seq").alias("out_seq"))
    both = arrived.join(left, _same(arrived, left), "left").select(
        *(arrived[name] for name in (*PAIR, "peer", "seq", "ts_ns")), "out_seq"
    )
    earlier = Window.partitionBy(*PAIR).orderBy("out_seq").rowsBetween(Window.unboundedPreceding, -1)
    delivered = fn.col("out_seq").isNotNull()
    overtaken = delivered & (fn.max(fn.when(delivered, fn.col("seq"))).over(earlier) > fn.col("seq"))
    return conform(
        both.withColumn("overtaken", overtaken)
        .withColumn("dt", day())
        .groupBy(*PAIR, "dt")
        .agg(
            fn.max("peer").alias("peer"),
            fn.count("*").alias("n"),
            fn.count_if("overtaken").alias("out_of_order"),
            fn.count_if(fn.col("out_seq").isNull()).alias("missing"),
            fn.min("ts_ns").alias("first_ns"),
            fn.max("ts_ns").alias("last_ns"),
        )
        .withColumn("first_ts", moment("first_ns"))
        .withColumn("last_ts", moment("last_ns")),
        ORDER_CHECK,
    )


def _sides(bronze: DataFrame) -> DataFrame:
    """Each message as it came in or went out, with its destination and which one of its identity it is."""
    rows = resolved(bronze)
    event, arrived = fn.col("type") == "event", fn.col("direction") == "in"
    rows = rows.where((event & (fn.col("event_seq") > 0)) | (~event & fn.col("origin").isNotNull())).select(
        "rank",
        "run",
        fn.when(~event, fn.col("origin")).alias("origin"),
        fn.when(event, 0).when(arrived, fn.col("via_id")).otherwise(fn.col("peer_id")).alias("dest"),
        fn.when(~event & arrived, fn.col("via")).when(~event, fn.col("peer")).alias("peer"),
        "type",
        fn.when(event, 0).otherwise(fn.col("matchtag")).alias("matchtag"),
        fn.coalesce("nodeid", "errnum", "event_seq").alias("word"),
        "topic",
        "seq",
        "ts_ns",
        arrived.alias("arrived"),
    )
    nth = Window.partitionBy(*PAIR, "matchtag", "word", "topic", "arrived").orderBy("seq")
    return rows.withColumn("nth", fn.row_number().over(nth))


def _same(one: DataFrame, other: DataFrame) -> Column:
    same = fn.lit(True)
    for name in _IDENTITY:
        same = same & one[name].eqNullSafe(other[name])
    return same
