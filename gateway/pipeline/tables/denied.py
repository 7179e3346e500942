"""denied: requests and links that were refused."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import DENIED
from gateway.pipeline.tables.shape import conform, fact

LINK: Final = "denied.link"
"""Topic of the STATE record of a refused link: {"address", "uid", "errno", "reason"}."""


def denied(bronze: DataFrame) -> DataFrame:
    """``kind``: ``web`` came by WebSocket, ``link`` is a link that was not let in, anything else is a
    ``request``.
    """
    link = (fn.col("kind") == "state") & (fn.col("topic") == LINK)
    web = fn.col("transport") == "websocket"
    return conform(
        bronze.where((fn.col("direction") == "denied") | link)
        .withColumn("link", link)
        .withColumn("kind", fn.when(link, "link").when(web, "web").otherwise("request"))
        .withColumn(
            "peer", fn.when(fn.col("link"), fn.coalesce(fact("address"), "peer")).otherwise(fn.col("peer"))
        )
        .withColumn(
            "userid",
            fn.when(fn.col("link"), fn.coalesce("userid", fact("uid", "bigint"))).otherwise(fn.col("userid")),
        )
        .withColumn(
            "errno",
            fn.when(fn.col("link"), fn.coalesce(fact("errno", "bigint"), "reason")).otherwise(
                fn.col("reason")
            ),
        )
        .withColumn("topic", fn.when(~fn.col("link"), fn.col("topic"))),
        DENIED,
    )
