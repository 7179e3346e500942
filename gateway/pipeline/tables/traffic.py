"""traffic: how much passed, by windows of 10 s and everything that one filters by."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import TRAFFIC
from gateway.pipeline.tables.shape import begin, bucket, conform, day, service

WINDOW_S: Final = 10
_KEYS: Final = ("rank", "writer", "transport", "direction", "kind", "topic", "type", "userid")


def traffic(bronze: DataFrame) -> DataFrame:
    """Messages, bytes and errors; additive: rows of two disjoint parts of bronze may be added up.

    An error is a response with an errnum, or a denied message.
    """
    failed = (fn.col("type") == "response") & (fn.col("aux1") != 0)
    grouped = bronze.groupBy(bucket(WINDOW_S).alias("bucket"), *_KEYS).agg(
        fn.count("*").alias("n"),
        fn.sum("payload_len").alias("payload_bytes"),
        fn.sum("wire_len").alias("wire_bytes"),
        fn.count_if(failed | (fn.col("direction") == "denied")).alias("errors"),
    )
    return conform(
        grouped.withColumn("window", begin("bucket", WINDOW_S))
        .withColumn("service", service())
        .withColumn("dt", day(f"bucket * {WINDOW_S * 10**9}")),
        TRAFFIC,
    )
