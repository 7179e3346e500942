"""All built-in services of one broker."""

from __future__ import annotations

from broker.services.attr import Attr
from broker.services.broker import BrokerSelf
from broker.services.config import Config
from broker.services.connector_local import ConnectorLocal
from broker.services.context import Context
from broker.services.event import Event
from broker.services.groups import Groups
from broker.services.heartbeat import Heartbeat
from broker.services.journal import Journal
from broker.services.log import FORWARD_LEVEL, Log
from broker.services.module import Module
from broker.services.overlay import Overlay
from broker.services.providers import Providers
from broker.services.rexec import Rexec
from broker.services.scheduler import JobManager, Resource
from broker.services.service import Service
from broker.services.shutdown import Shutdown
from broker.services.state_machine import StateMachine


def built_in(
    context: Context,
    *,
    log_entries: int = 1024,
    log_forward_level: int = FORWARD_LEVEL,
    heartbeat_period_s: float = 2.0,
) -> list[Service]:
    """Every service this rank provides, not yet started.

    Args:
        context: the broker.
        log_entries: entries the log ring holds; 0 keeps none.
        log_forward_level: least severe entries sent to rank 0 (0 emergency to 7 debug); -1 sends none.
        heartbeat_period_s: seconds between two pulses of rank 0.
    """
    groups, log = Groups(context), Log(context, log_entries, log_forward_level)
    services: list[Service] = [
        Attr(context),
        BrokerSelf(context),
        Config(context),
        ConnectorLocal(context),
        Event(context),
        groups,
        Heartbeat(context, heartbeat_period_s),
        Journal(context),
        log,
        Overlay(context),
        Providers(context),
        Resource(context, groups),
        Rexec(context),
        Shutdown(context, log),
        StateMachine(context),
    ]
    if context.rank == 0:  # as deployed: below it, requests go up to the one at rank 0
        services.append(JobManager(context))
    services.append(Module(context, lambda: services))
    return services
