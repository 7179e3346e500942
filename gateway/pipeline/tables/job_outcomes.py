"""job_outcomes: what became of each job of NFP."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import JOB_OUTCOMES
from gateway.pipeline.tables.shape import conform, day, fact, moment

_TEXTS: Final = ("uuid", "service", "task", "client", "status", "worker")
FINAL: Final = ("COMPLETED", "FAILED", "EXPIRED", "CANCELLED", "JOB NOT FOUND")
"""Statuses behind which nothing comes."""


def job_outcomes(bronze: DataFrame) -> DataFrame:
    """One row a job: the last status seen (by time, then by number), and how long it took until a final one was
    first seen.
    """
    order = fn.struct("ts_ns", "writer", "seq")
    facts = bronze.where(fn.col("kind") == "nfp").select(
        "ts_ns",
        "writer",
        "seq",
        *(fact(name).alias(name) for name in _TEXTS),
        fact("attempt", "bigint").alias("attempt"),
    )
    jobs = facts.where(fn.col("uuid").isNotNull()).groupBy("uuid")
    first = {
        name: fn.min_by(name, fn.when(fn.col(name).isNotNull(), order))
        for name in ("service", "task", "client")
    }
    return conform(
        jobs.agg(
            *(value.alias(name) for name, value in first.items()),
            fn.max_by("status", fn.when(fn.col("status").isNotNull(), order)).alias("status"),
            fn.coalesce(fn.max("attempt"), fn.lit(1)).alias("attempts"),
            fn.count_distinct("worker").alias("workers"),
            fn.min("ts_ns").alias("from_ns"),
            fn.min(fn.when(fn.col("status").isin(*FINAL), fn.col("ts_ns"))).alias("to_ns"),
        )
        .withColumn("t_submit", moment("from_ns"))
        .withColumn("t_done", moment("to_ns"))
        .withColumn("duration_ns", fn.col("to_ns") - fn.col("from_ns"))
        .withColumn("dt", day("from_ns")),
        JOB_OUTCOMES,
    )


def settled(rows: DataFrame, since_ns: int) -> DataFrame:
    """All rows of the jobs that ended, or that were last heard of before ``since_ns``."""
    jobs = rows.where(fn.col("kind") == "nfp").withColumn("uuid", fact("uuid"))
    final = fn.coalesce(fact("status").isin(*FINAL), fn.lit(False))
    told = jobs.groupBy("uuid").agg(fn.bool_or(final).alias("ended"), fn.max("ts_ns").alias("heard"))
    told = told.where(fn.col("ended") | (fn.col("heard") < since_ns)).select("uuid")
    return jobs.join(told, "uuid", "left_semi").select(*rows.columns)
