"""Who asked: the origin of rows that do not carry one.

A request that came in carries its sender's hop; a response on its last leg, and a request refused as it was
received, carry none. Whose they are says the peer: its hop is the origin of the requests it sent itself, those
with the fewest routes.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

_PEER = ("rank", "run", "peer_id")


def has_other_than_in(bronze: DataFrame) -> bool:
    """Whether deliveries or denials were captured; Spark looks at statistics first, so it is cheap where there
    are none.
    """
    return not bronze.where(fn.col("direction") != "in").select("seq").limit(1).isEmpty()


def hops(bronze: DataFrame) -> DataFrame:
    """The hop of each peer that asked something, by ``rank``, ``run`` and ``peer_id``."""
    asked = (fn.col("direction") == "in") & (fn.col("type") == "request") & fn.col("origin").isNotNull()
    hop = fn.min_by("origin", fn.struct("routes", "seq")).alias("hop")
    return bronze.where(asked).groupBy(*_PEER).agg(hop)


def resolved(bronze: DataFrame) -> DataFrame:
    """``bronze`` with ``origin`` filled in where the peer tells it, if it has rows that need that."""
    if not has_other_than_in(bronze):
        return bronze
    came = fn.col("direction") == "in"
    filled = bronze.where(~came).join(fn.broadcast(hops(bronze)), list(_PEER), "left")
    filled = filled.withColumn("origin", fn.coalesce("origin", "hop")).select(*bronze.columns)
    return bronze.where(came).unionByName(filled)
