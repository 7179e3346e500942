"""The same four tables as anybody would make them who knows the columns, by Spark or by DuckDB alone: what the pipeline
is held against. ``python -m tests.bench.spark_plain spark|duckdb MESSAGES OUT`` writes them as Parquet, and says how
many calls it found and the CPU seconds that it and its children took.

No Delta log, no refusals, no order, no tree, no calls over midnight: it is a script.
"""

import resource
import sys
from collections.abc import Callable
from pathlib import Path

TRAFFIC = """
    SELECT floor(ts_ns / 10000000000) AS time, rank, writer, transport, direction, kind, service, topic, type, userid,
        count(*) AS n, sum(payload_len) AS payload_bytes, sum(wire_len) AS wire_bytes
    FROM messages WHERE role NOT IN ('child', 'parent') GROUP BY ALL
"""
RPC = """
    WITH leg AS (
        SELECT *, max(CASE WHEN type = 'request' THEN seq END)
            OVER (PARTITION BY rank, run, origin, matchtag ORDER BY seq) AS call
        FROM messages
        WHERE kind = 'flux' AND direction = 'in' AND role NOT IN ('child', 'parent') AND matchtag > 0
            AND origin IS NOT NULL AND (type = 'response' OR type = 'request' AND (flags & 4) = 0))
    SELECT rank, run, origin, matchtag, call, max(topic) AS topic,
        min(CASE WHEN type = 'request' THEN ts_ns END) AS ts_ns,
        max(CASE WHEN type = 'request' THEN userid END) AS userid,
        min(CASE WHEN type = 'response' THEN ts_ns END) - min(CASE WHEN type = 'request' THEN ts_ns END) AS lat_ns,
        count(CASE WHEN type = 'response' THEN 1 END) AS n_responses, max(errnum) AS errnum
    FROM leg WHERE call IS NOT NULL GROUP BY rank, run, origin, matchtag, call
"""
LATENCY = """
    SELECT floor(ts_ns / 60000000000) AS time, rank, topic, floor(log2(lat_ns + 1) * 16) AS bucket,
        count(*) AS n, sum(lat_ns) AS sum_ns, max(lat_ns) AS max_ns
    FROM rpc GROUP BY ALL
"""
USAGE = """
    SELECT userid, count(CASE WHEN type = 'request' THEN 1 END) AS requests,
        count(CASE WHEN type = 'event' THEN 1 END) AS events, sum(payload_len) AS payload_bytes,
        sum(wire_len) AS wire_bytes
    FROM messages WHERE direction = 'in' AND role NOT IN ('child', 'parent') GROUP BY userid
"""
TABLES = {"traffic": TRAFFIC, "rpc": RPC, "rpc_latency": LATENCY, "user_usage": USAGE}


def by_spark(messages: str, out: str) -> int:
    """A session as PySpark makes one."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.read.parquet(f"{messages}/*/*.parquet").createOrReplaceTempView("messages")
    for name, sql in TABLES.items():
        spark.sql(sql).write.parquet(f"{out}/{name}")
        spark.read.parquet(f"{out}/{name}").createOrReplaceTempView(name)
    calls = int(spark.table("rpc").count())
    spark.stop()
    spark.sparkContext._gateway.shutdown()
    spark.sparkContext._gateway.proc.stdin.close()
    spark.sparkContext._gateway.proc.wait()
    return calls


def by_duckdb(messages: str, out: str) -> int:
    """All cores of the machine."""
    import duckdb

    base = duckdb.connect()
    base.sql(f"CREATE VIEW messages AS FROM read_parquet('{messages}/*/*.parquet')")
    Path(out).mkdir()
    for name, sql in TABLES.items():
        base.sql(f"COPY ({sql}) TO '{out}/{name}.parquet'")
        base.sql(f"CREATE VIEW {name} AS FROM '{out}/{name}.parquet'")
    return int(base.sql("SELECT count(*) FROM rpc").fetchall()[0][0])


WAYS: dict[str, Callable[[str, str], int]] = {"spark": by_spark, "duckdb": by_duckdb}

if __name__ == "__main__":
    found = WAYS[sys.argv[1]](*sys.argv[2:])
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(found, sum(each.ru_utime + each.ru_stime for each in used))
