"""traffic: how much passed, by windows of 10 s and everything that one filters by; tree_traffic: what of it the brokers
said to each other.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import TRAFFIC, TREE_TRAFFIC, Table
from gateway.pipeline.tables.shape import begin, bucket, conform, day, of_broker, service

WINDOW_S: Final = 10
_KEYS: Final = ("rank", "writer", "transport", "direction", "kind", "topic", "type", "userid")


def traffic(bronze: DataFrame) -> DataFrame:
    """Messages and bytes; additive: rows of two disjoint parts of bronze may be added up.

    What another broker of the tree sent, or is sent, is counted where it entered or leaves; what was refused further on
    than at the door had come in.
    """
    inside = (fn.col("direction") == "denied") & (fn.col("via_id") != 0) & (fn.col("role") != "web")
    counted = (fn.col("kind") == "flux") & (of_broker() | fn.coalesce(inside, fn.lit(False)))
    return _windows(bronze.where(~counted), _KEYS, TRAFFIC)


def tree_traffic(bronze: DataFrame) -> DataFrame:
    """Messages and bytes that came from a neighbour in the tree, or went there; additive, too."""
    between = bronze.where((fn.col("kind") == "flux") & (fn.col("direction") != "denied") & of_broker())
    named = between.withColumn("service", service())
    return _windows(named, ("rank", "peer", "role", "direction", "type", "service"), TREE_TRAFFIC)


def _windows(rows: DataFrame, keys: tuple[str, ...], table: Table) -> DataFrame:
    grouped = rows.groupBy(bucket(WINDOW_S).alias("bucket"), *keys).agg(
        fn.count("*").alias("n"),
        fn.sum("payload_len").alias("payload_bytes"),
        fn.sum("wire_len").alias("wire_bytes"),
    )
    dated = grouped.withColumn("window", begin("bucket", WINDOW_S)).withColumn(
        "dt", day(f"bucket * {WINDOW_S * 10**9}")
    )
    return conform(dated if "service" in keys else dated.withColumn("service", service()), table)
