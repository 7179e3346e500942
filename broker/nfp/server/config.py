"""What the settings mean for the rooms behind the sockets."""

from __future__ import annotations

import errno

from broker.errors import ConfigError
from broker.nfp.access import Access, Key
from broker.nfp.dispatch import DispatchConfig
from broker.nfp.server.keys import OWNER, BrokerKeys
from broker.settings.nfp import NfpSection

AHEAD = 1
"""Jobs that a worker of ours is given beyond its slots: none of them is empty until the next job is there."""


def access_of(settings: NfpSection, keys: BrokerKeys) -> Access:
    """The rules, with the owner's key in the base directory listed."""
    listed: list[Key] = [
        Key(entry.key, entry.name, entry.standing, entry.userid, entry.services) for entry in settings.keys
    ]
    if keys.owner is not None:
        listed.append(Key(keys.owner.public_key, OWNER, "owner", None, ("*",)))
    return Access(
        listed,
        settings.rules,
        settings.tasks,
        unlisted=settings.unlisted,
        offer_unlisted=settings.offer_unlisted,
        results=settings.results,
    )


def dispatch_config(settings: NfpSection) -> DispatchConfig:
    """Limits and intervals of jobs."""
    return DispatchConfig(
        keepalive_s=settings.keepalive_ms / 1000,
        multiplier=settings.multiplier,
        grace_s=settings.grace_s,
        credits=settings.credits,
        credits_max=settings.credits_max,
        ahead=AHEAD,
        queue_ttl_s=settings.queue_ttl_s,
        job_ttl_s=settings.job_ttl_s,
        result_ttl_s=settings.result_ttl_s,
        results_max_bytes=settings.results_max_bytes,
        results_max_jobs=settings.results_max_jobs,
        queue_max=settings.queue_max,
        queue_per_client=settings.queue_per_client,
        slots_per_client=settings.slots_per_client,
        jobs_max=settings.jobs_max,
        slots_max=settings.slots_max,
        open_max_bytes=settings.open_max_bytes,
        attempts_max=settings.attempts_max,
    )


def separated(error: ConfigError) -> ConfigError:
    """``error`` with what keeps two brokers on one machine apart, if it is that another one is in the way."""
    if error.errno not in (errno.EADDRINUSE, errno.EBUSY):
        return error
    hint = "a second broker on one machine needs an nfp.endpoint and an nfp.base_dir of its own"
    return ConfigError(f"{error}; {hint}", error.errno)
