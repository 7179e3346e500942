"""Requests and their responses (RFC 6): the hashed window, which is the reference for every faster way.

Key of a call is (rank, run, origin, matchtag). The rows of a key are walked by their number, which is the order
in which the broker handled them; times only date them. A request opens a call. A response belongs to the call
that is open; it ends it when the call asked for one response, or with an errnum. A response while none is open
is an *orphan*. A request while a call is open takes its tag: the earlier one is *reused*, and what comes is the
later one's. Requests that a broker denied open calls, too, so that their answers are not taken for somebody else's;
they are no calls. What a built-in service denied (``via`` is this broker) had come in: that is an answer.

What came in counts. With ``capture = both`` a response has an echo where it went out, which is passed over; but
an answer that the broker itself made (it refused, or the provider went away) is seen only there, and so it
counts where nothing came in. With ``capture = in`` the answers of built-in services are not seen at all: such a call
is *unseen* until something is.

A call passes several brokers, each of which tells of it: ``entered`` says where it did that first.

In one window and one grouping: each row knows the last request of its key; ``part`` grows at each request and
behind each row that ends a call, so that the rows of a call share one, and rows of a part that no request began
are orphans. The window is keyed by a 64-bit hash of (run, origin) beside matchtag and rank: strings are neither
sorted nor compared.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from gateway.pipeline.tables.shape import NORESPONSE, STREAMING, of_broker

REQUEST: Final = 1
REFUSED: Final = 2
CAME_IN: Final = 3
WENT_OUT: Final = 4
"""What a row is (column ``what``)."""

FIELDS: Final = (
    "rank",
    "run",
    "origin",
    "matchtag",
    "what",
    "call",
    "req_ns",
    "topic",
    "userid",
    "streaming",
    "entered",
    "source",
    "target",
    "unseen",
)
"""A call, or an orphan (``what`` = CAME_IN): first columns of what ``calls`` gives. Then: first_ns, last_ns, errnum,
n_responses, reused. ``source`` and ``target`` name the neighbours in the tree, of others the role."""


def tracked() -> Column:
    """Rows that calls are made of: with a tag, with an origin, wanting a response."""
    request = (fn.col("type") == "request") & (fn.col("direction") != "out")
    response = (fn.col("type") == "response") & (fn.col("direction") != "denied")
    return (request | response) & answerable()


def answerable() -> Column:
    """A message with a tag and an origin that wants a response, or is one."""
    wanted = (fn.col("type") == "response") | (fn.col("flags").bitwiseAND(NORESPONSE) == 0)
    return wanted & (fn.col("matchtag") != 0) & fn.col("origin").isNotNull()


def what() -> Column:
    """REQUEST, REFUSED, CAME_IN or WENT_OUT."""
    first = fn.col("type") == "request"
    came = fn.col("direction") == "in"
    return (
        fn.when(first & came, REQUEST)
        .when(first & (fn.col("via_id") == 0), REFUSED)
        .when(came, CAME_IN)
        .otherwise(WENT_OUT)
        .cast("byte")
    )


def legs(resolved: DataFrame) -> DataFrame:
    """The rows that calls are made of, in few columns; ``resolved`` by ``endpoints``."""
    answer = fn.col("type") == "response"
    asker = fn.when(answer & (fn.col("direction") == "in"), fn.col("via_role")).otherwise(fn.col("role"))
    unseen = ~answer & (fn.col("via_role") == "own") & (fn.col("capture") == "in")
    return resolved.where(tracked()).select(
        "rank",
        "run",
        "origin",
        "matchtag",
        "seq",
        "ts_ns",
        "topic",
        "userid",
        what().alias("what"),
        ((fn.col("flags").bitwiseAND(STREAMING) != 0) & ~answer).alias("streaming"),
        fn.when(answer, fn.col("errnum"))
        .when(what() == WENT_OUT, fn.col("reason"))
        .otherwise(0)
        .cast("bigint")
        .alias("errnum"),
        (~of_broker(asker)).alias("entered"),
        _end("role", "peer").alias("source"),
        _end("via_role", "via").alias("target"),
        fn.coalesce(unseen, fn.lit(False)).alias("unseen"),
    )


def _end(role: str, name: str) -> Column:
    """What a call is said to come from, or to go to: few, however many clients there are."""
    return fn.when(of_broker(fn.col(role)), fn.col(name)).otherwise(fn.col(role))


def parted(legs: DataFrame) -> DataFrame:
    """Each row with its call: ``part`` (or -1 - seq of an orphan), the topic asked for, ``taken``: the next row
    asks again.
    """
    key = Window.partitionBy("key", "matchtag", "rank").orderBy("seq")
    so_far = key.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    asks = fn.col("what") <= REFUSED

    def of_request(value: Column) -> Column:
        return fn.last(fn.when(asks, value), ignorenulls=True).over(so_far)

    ends = ~asks & ((fn.col("errnum") != 0) | ~fn.coalesce("streams", fn.lit(False)))
    rows = (
        legs.withColumn("key", fn.xxhash64("run", "origin"))
        .withColumn("streams", of_request(fn.col("streaming")))
        .withColumn("asked", of_request(fn.coalesce("topic", fn.lit(""))))
        .withColumn("taken", fn.lead(asks.cast("int")).over(key))
        .withColumn("ends", ends)
        .withColumn(
            "part", fn.sum((asks | fn.col("ends")).cast("int")).over(so_far) - fn.col("ends").cast("int")
        )
        .withColumn("began", of_request(fn.col("part")))
    )
    orphan = fn.coalesce(fn.col("began") != fn.col("part"), fn.lit(True))
    return rows.withColumn("part", fn.when(orphan, -1 - fn.col("seq")).otherwise(fn.col("part"))).withColumn(
        "asked", fn.when(orphan, fn.col("topic")).otherwise(fn.col("asked"))
    )


def calls(legs: DataFrame) -> DataFrame:
    """One row for each call, denied request and orphan; columns: see ``FIELDS``.

    ``first_ns`` and ``last_ns`` are times, null without a response; ``errnum`` is that of the last response.
    """
    asks, came = fn.col("what") <= REFUSED, fn.col("what") == CAME_IN
    out_failed = (fn.col("what") == WENT_OUT) & (fn.col("errnum") != 0)
    n_in, n_out = fn.col("n_in"), fn.col("n_out")
    rows = parted(legs).where((fn.col("part") >= 0) | came)
    return (
        rows.groupBy("key", "matchtag", "rank", "run", "origin", "part", fn.col("asked").alias("topic"))
        .agg(
            fn.min("what").alias("what"),
            fn.min("seq").alias("call"),
            fn.max(fn.when(asks, fn.col("ts_ns"))).alias("req_ns"),
            fn.max(fn.when(asks, fn.col("userid"))).alias("userid"),
            fn.max("streaming").alias("streaming"),
            fn.coalesce(fn.max(fn.when(asks, fn.col("entered"))), fn.max("entered")).alias("entered"),
            *(fn.max(fn.when(asks, fn.col(name))).alias(name) for name in ("source", "target")),
            fn.max("unseen").alias("asked_unseen"),
            fn.min(fn.when(~asks, fn.col("ts_ns"))).alias("first_ns"),
            fn.max(fn.when(came | out_failed, fn.col("ts_ns"))).alias("last_seen"),
            fn.max(fn.when(~asks, fn.col("ts_ns"))).alias("last_any"),
            fn.max("errnum").alias("errnum"),
            fn.count_if(came).alias("n_in"),
            fn.count_if(~asks & ~came).alias("n_out"),
            fn.count_if(out_failed).alias("n_failed"),
            fn.max("taken").alias("taken"),
        )
        .withColumn("n_responses", fn.when(n_in > 0, n_in + fn.col("n_failed")).otherwise(n_out))
        .withColumn("last_ns", fn.when(n_in > 0, fn.col("last_seen")).otherwise(fn.col("last_any")))
        .withColumn("unseen", fn.col("asked_unseen") & (fn.col("n_responses") == 0))
        .withColumn("reused", (fn.coalesce("taken", fn.lit(0)) == 1) & ~ended() & ~fn.col("unseen"))
        .select(*FIELDS, "first_ns", "last_ns", "errnum", "n_responses", "reused")
    )


def ended() -> Column:
    """The call has its last response."""
    return (fn.col("errnum") != 0) | (~fn.col("streaming") & (fn.col("n_responses") > 0))


def settled(found: DataFrame, rows: DataFrame, since_ns: int) -> DataFrame:
    """What ``calls`` gives without the calls that are open and not older than ``since_ns``: those that wait for a
    response that could be seen.

    Of a call that is *unseen* only its refusal is recorded, and that right behind the request: it is open as long
    as nothing else came behind it. ``rows`` are the newest ones.
    """
    newest = rows.groupBy("rank", "run").agg(fn.max("seq").alias("newest"))
    behind = fn.coalesce(fn.col("newest") > fn.col("call"), fn.lit(False))
    waits = (fn.col("what") == REQUEST) & ~ended() & ~fn.col("reused") & ~(fn.col("unseen") & behind)
    return (
        found.join(fn.broadcast(newest), ["rank", "run"], "left")
        .where(~(waits & (fn.col("req_ns") >= since_ns)))
        .drop("newest")
    )
