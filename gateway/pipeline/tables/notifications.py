"""notifications: envelopes of oslo.messaging's notifications."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import NOTIFICATIONS
from gateway.pipeline.tables.shape import conform, fact


def notifications(bronze: DataFrame) -> DataFrame:
    """One row for each notification that came in; topic and the like are null where the proxy did not see them."""
    rows = bronze.where((fn.col("kind") == "oslo") & (fn.col("direction") == "in"))
    return conform(
        rows.where(fact("what") == "notification")
        .withColumn("topic", fact("topic"))
        .withColumn("exchange", fact("exchange"))
        .withColumn("event_type", fact("event_type"))
        .withColumn("priority", fact("priority"))
        .withColumn("publisher_id", fact("publisher_id")),
        NOTIFICATIONS,
    )
