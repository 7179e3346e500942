"""What the journal holds, as Delta tables, by Spark: its SQL makes them, its tasks read the journal.

The only place that imports pyspark, and nothing here does before Spark is asked for.

``schema``     every table: columns, types, a version; as Arrow, as Spark DDL. Needs nothing but Python
``lake``       a table of Delta Lake: snapshots, rows -> files, commits
``warehouse``  all of them, who feeds them, how far jobs are, what each run read, wrote and lost
``session``    a Spark session set up for our sources; what is missing is said in words; ``archive`` keeps its classes
``arrow``      decoded columns -> Arrow batches of the schema
``source``     the Spark data source ``headgate``: batch and stream
``bronze``     segments -> ``messages``, by Spark's tasks: its one writer, of what is new in a journal and of a stream
``stream``     the journal as it grows -> bronze, exactly once, by the same
``compact``    many small files -> few large ones
``spans``      how far the journal may be read, and was; which bytes of which segments a task reads
``errors``     what goes wrong, in words
``verify``     whether a warehouse holds all that the journal does
``tables/``, ``gold``      bronze -> gold, in SQL (``tables/*.sql``), by whole dates or step by step behind a stream
``report``     the dashboard's history of a warehouse as one page, with its data inside

``python -m gateway.pipeline VERB ...`` is ``headgate pipeline VERB ...``, for ``spark-submit``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def views(spark: SparkSession, warehouse: str | os.PathLike[str]) -> list[str]:
    """Every table of a warehouse, as it is now, as a temporary view of its name, for SQL. Returns the names.

    Args:
        spark: where.
        warehouse: its directory, or the URL of one in a store.

    Raises:
        ConfigError: there is no such directory.
        PipelineError: it is of a version that is not read.
    """
    from gateway.pipeline.schema import TABLES
    from gateway.pipeline.warehouse import Warehouse

    house = Warehouse(warehouse).existing()
    for name in TABLES:
        house.read(spark, name).createOrReplaceTempView(name)
    return list(TABLES)
