"""event_gaps: where the sequence of events (RFC 3, "Event Message Type") does not go on by one.

Rank 0 numbers events, whoever published them, so its row of events is one sequence; elsewhere each peer that
events come from (the parent) has one. Sequences follow by number of the record within a run; 0xFFFFFFFF is
followed by 1, 0 is an event not numbered yet and belongs to no sequence.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from gateway.pipeline.schema import EVENT_GAPS
from gateway.pipeline.tables.shape import conform, day, moment

WRAP: Final = 0xFFFFFFFF
"""Numbers go from 1 to here."""


def numbered(bronze: DataFrame) -> DataFrame:
    """Events that came in with a number; ``source`` names their sequence within a run."""
    events = bronze.where(
        (fn.col("type") == "event") & (fn.col("direction") == "in") & (fn.col("event_seq") > 0)
    )
    return events.withColumn("source", fn.when(fn.col("rank") == 0, fn.lit(0)).otherwise(fn.col("peer_id")))


def event_gaps(bronze: DataFrame) -> DataFrame:
    """One row for each step that is not +1: ``duplicate`` the same number again, ``gap`` numbers left out,
    ``reorder`` a step back, which is shorter than the step forward would be.
    """
    order = Window.partitionBy("rank", "writer", "run", "source").orderBy("seq")
    step = (fn.col("next_seq") - fn.col("prev_seq") + WRAP) % WRAP
    steps = (
        numbered(bronze)
        .withColumn("next_seq", fn.col("event_seq"))
        .withColumn("prev_seq", fn.lag("event_seq").over(order))
        .where(fn.col("prev_seq").isNotNull())
        .withColumn("step", step)
        .where(fn.col("step") != 1)
    )
    back = fn.col("step") > WRAP // 2
    return conform(
        steps.withColumn(
            "kind", fn.when(fn.col("step") == 0, "duplicate").when(back, "reorder").otherwise("gap")
        )
        .withColumn("missing", fn.when(fn.col("kind") == "gap", fn.col("step") - 1).otherwise(0))
        .withColumn("ts", moment())
        .withColumn("dt", day()),
        EVENT_GAPS,
    )
