"""Gold tables, each a pure function of bronze rows.

``traffic`` ``rpc`` ``rpc_latency`` ``denied`` ``event_gaps`` ``order_check`` ``user_usage`` ``job_outcomes``
``notifications`` ``slow``
              one table each: ``NAME(bronze) -> DataFrame`` with the columns of ``schema``
``calls``     requests and their responses: the hashed window that rpc, rpc_latency and user_usage stand on
``matching``  the same, file by file with numpy; only what is left over goes through the window
``endpoints`` who asked, for rows that do not carry an origin
``increment`` what one batch of a stream adds to each table, and what it leaves open for the next one
``catalogue`` all of them by name, and how far around a date they look
``sql``       the same tables in DuckDB's SQL, for ``bench``
``shape``     columns as the schema has them, time in windows
"""
