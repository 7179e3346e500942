"""Typed configuration of a gateway: one TOML file, frozen once it is read (``headgate gateway --show``).

schema   the sections and entries, each field with its unit, default, reason and off value
addresses   what a listener's URL says; origins of pages, and addresses that are asked
redis_url   clients of redis-py
sample   what the sample file has beside the schema: its head, examples
rules    what types cannot say: what needs TLS, which roles must be allowed, which limit exceeds which
reading  file -> text -> tables -> `GatewaySettings`, or one `ConfigError` that lists every problem by line
"""

from gateway.settings.addresses import place_of
from gateway.settings.reading import apply, check, load, loads, renewed
from gateway.settings.schema import (
    AccessSection,
    GatewaySection,
    GatewaySettings,
    HistorySection,
    JwtSection,
    LimitsSection,
    ListenEntry,
    OidcEntry,
    OidcGroup,
    RuleEntry,
    TokenSection,
    UserEntry,
)

__all__ = [
    "AccessSection",
    "GatewaySection",
    "GatewaySettings",
    "HistorySection",
    "JwtSection",
    "LimitsSection",
    "ListenEntry",
    "OidcEntry",
    "OidcGroup",
    "RuleEntry",
    "TokenSection",
    "UserEntry",
    "apply",
    "check",
    "load",
    "loads",
    "place_of",
    "renewed",
]
