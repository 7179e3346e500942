"""Gold tables, each a pure function of rows of bronze, in Spark's SQL; what a table means stands in its module.

``traffic``   traffic, deliveries, tree_traffic
``calls``     requests and their responses: rpc, and what latencies, errors and usage are made of
``latency``   rpc_latency, tree_latency
``denied``    denied, errors
``events``    event_gaps
``order``     order_check
``usage``     user_usage
``jobs``      job_outcomes
``notes``     notifications, slow
``sql``       words that they share, and what they are given
``catalogue`` all of them by name, and what a step of a stream leaves open
``made``      their DataFrames
"""
