"""slow: what was not delivered, or not recorded, because somebody did not keep up."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import SLOW
from gateway.pipeline.tables.shape import conform, fact


def slow(bronze: DataFrame) -> DataFrame:
    """From STATE records: ``drop`` events a subscriber lost, ``discarded`` messages that waited for a link that
    ended, ``shed`` records that the journal lost.
    """
    what = (
        fn.when(fn.col("topic") == "drop", "drop")
        .when((fn.col("topic") == "link.down") & (fact("discarded", "bigint") > 0), "discarded")
        .when(fn.col("topic") == "gap", "shed")
    )
    lost = {"drop": "events", "discarded": "discarded", "shed": "records"}
    events = fn.coalesce(
        *(fn.when(fn.col("what") == name, fact(key, "bigint")) for name, key in lost.items())
    )
    named = fn.coalesce(fn.when(fn.col("peer_id") != 0, fn.col("peer")), fact("peer"))
    return conform(
        bronze.where(fn.col("kind") == "state")
        .withColumn("what", what)
        .where(fn.col("what").isNotNull())
        .withColumn("events", events)
        .withColumn("bytes", fact("bytes", "bigint"))
        .withColumn("peer", fn.when(fn.col("what") == "shed", fn.col("writer")).otherwise(named))
        .withColumn("reason", fn.coalesce(fact("reason"), fact("cause"))),
        SLOW,
    )
