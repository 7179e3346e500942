"""Who asked: the origin of rows that do not carry one.

A request that came in carries its sender's hop; a response on its last leg, and a request refused as it was
received, carry none. Whose they are says the peer: its hop is the origin of the requests it sent itself, those
with the fewest routes.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

_PEER = ("rank", "run", "peer_id")
HOPS_DDL = "rank bigint, run string, peer_id bigint, hop string, routes bigint, seq bigint, seen_ns bigint"


def has_other_than_in(bronze: DataFrame) -> bool:
    """Whether deliveries or denials were captured; Spark looks at statistics first, so it is cheap where there
    are none.
    """
    return not bronze.where(fn.col("direction") != "in").select("seq").limit(1).isEmpty()


def hops(bronze: DataFrame) -> DataFrame:
    """The hop of each peer that asked something; columns: see ``HOPS_DDL`` (``seen_ns``: when it last did)."""
    asked = (fn.col("direction") == "in") & (fn.col("type") == "request") & fn.col("origin").isNotNull()
    return fewest(
        bronze.where(asked).select(
            *_PEER,
            fn.col("origin").alias("hop"),
            fn.col("routes").cast("bigint"),
            "seq",
            fn.col("ts_ns").alias("seen_ns"),
        )
    )


def fewest(hops: DataFrame) -> DataFrame:
    """One row for each peer."""
    order = fn.struct("routes", "seq")
    names = ("hop", "routes", "seq")
    found = hops.groupBy(*_PEER).agg(
        *(fn.min_by(name, order).alias(name) for name in names), fn.max("seen_ns").alias("seen_ns")
    )
    return found.select(*_PEER, *names, "seen_ns")


def resolved(bronze: DataFrame, known: DataFrame | None = None) -> DataFrame:
    """``bronze`` with ``origin`` filled in where the peer tells it.

    Args:
        bronze: rows of any kind.
        known: hops of the peers; None: those of ``bronze``, if it has rows that need them.
    """
    if known is None:
        if not has_other_than_in(bronze):
            return bronze
        known = hops(bronze)
    came = fn.col("direction") == "in"
    filled = bronze.where(~came).join(fn.broadcast(known.select(*_PEER, "hop")), list(_PEER), "left")
    filled = filled.withColumn("origin", fn.coalesce("origin", "hop")).select(*bronze.columns)
    return bronze.where(came).unionByName(filled)
