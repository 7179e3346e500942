"""Gold tables, each a pure function of bronze rows, by Spark and by DuckDB.

``traffic`` ``rpc`` ``rpc_latency`` ``denied`` ``event_gaps`` ``order_check`` ``user_usage`` ``job_outcomes``
``notifications`` ``slow``
              a table each: ``NAME(bronze) -> DataFrame`` with the columns of ``schema``; beside three of them stand
              ``tree_traffic``, ``tree_latency`` and ``errors``
``calls``     requests and their responses: the hashed window that rpc, errors, latencies and user_usage stand on
``endpoints`` who asked, for rows that do not carry an origin
``catalogue`` all of them by name
``sql``       the same tables in DuckDB's SQL, and what a step of a stream leaves open
``inprocess`` runs it: small warehouses without a JVM
``increment`` what one step of a stream adds to each table, by ``inprocess``
``shape``     columns as the schema has them, time in windows
"""
