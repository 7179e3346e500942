"""Gold tables, each a pure function of bronze rows.

``traffic`` ``rpc`` ``rpc_latency`` ``denied`` ``event_gaps`` ``order_check`` ``user_usage`` ``job_outcomes``
``notifications`` ``slow``
              a table each: ``NAME(bronze) -> DataFrame`` with the columns of ``schema``; beside three of them stand
              ``tree_traffic``, ``tree_latency`` and ``errors``
``calls``     requests and their responses: the hashed window that rpc, errors, latencies and user_usage stand on
``endpoints`` who asked, for rows that do not carry an origin
``increment`` what one batch of a stream adds to each table, and what it leaves open for the next one
``catalogue`` all of them by name, and how far around a date they look
``sql``       the same tables in DuckDB's SQL, for ``bench``
``shape``     columns as the schema has them, time in windows
"""
