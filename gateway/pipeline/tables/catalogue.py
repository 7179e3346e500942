"""Every gold table of Spark by name. A function sees the rows it is given and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame

from gateway.pipeline.tables.denied import denied, errors
from gateway.pipeline.tables.denied import of_rpc as errors_of_rpc
from gateway.pipeline.tables.event_gaps import event_gaps
from gateway.pipeline.tables.job_outcomes import job_outcomes
from gateway.pipeline.tables.notifications import notifications
from gateway.pipeline.tables.order_check import order_check
from gateway.pipeline.tables.rpc import of_calls as rpc_of_calls
from gateway.pipeline.tables.rpc import rpc
from gateway.pipeline.tables.rpc_latency import at_brokers, rpc_latency, tree_latency
from gateway.pipeline.tables.rpc_latency import of_calls as latency_of_calls
from gateway.pipeline.tables.slow import slow
from gateway.pipeline.tables.traffic import traffic, tree_traffic
from gateway.pipeline.tables.user_usage import user_usage, with_calls

BUILD: Final[Mapping[str, Callable[[DataFrame], DataFrame]]] = {
    "traffic": traffic,
    "tree_traffic": tree_traffic,
    "rpc": rpc,
    "rpc_latency": rpc_latency,
    "tree_latency": tree_latency,
    "denied": denied,
    "errors": errors,
    "event_gaps": event_gaps,
    "order_check": order_check,
    "user_usage": user_usage,
    "job_outcomes": job_outcomes,
    "notifications": notifications,
    "slow": slow,
}
"""Every gold table by name."""

FROM_CALLS: Final[Mapping[str, Callable[[DataFrame, DataFrame], DataFrame]]] = {
    "rpc": lambda calls, _bronze: rpc_of_calls(calls),
    "rpc_latency": latency_of_calls,
    "tree_latency": lambda calls, _bronze: at_brokers(calls),
    "errors": lambda calls, bronze: errors_of_rpc(rpc_of_calls(calls), bronze),
    "user_usage": lambda calls, bronze: with_calls(bronze, rpc_of_calls(calls)),
}
"""Those that stand on calls, from what ``calls.calls`` gives: they are matched once for all."""
