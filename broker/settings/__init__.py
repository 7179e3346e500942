"""Typed configuration: one TOML file, read once at start, frozen after that.

    lines     where each key stands in the text: tomllib keeps no line numbers, an error message needs them
    schema    the sections and entries, each field with its unit, default, reason and off value
    addresses what a URI of the configuration says, and whether it stays on this machine
    rules     what types cannot say: ranks that cover the tree, parents, keys, plaintext
    reading   file -> text -> tables -> `Settings`, or one `ConfigError` that lists every problem by line

Imported by the node and by the command line; the other rooms get plain values.
"""

from broker.settings.lines import KeyPath, key_lines
from broker.settings.reading import check, load, loads
from broker.settings.schema import (
    AccessSection,
    BrokerSection,
    ClientEntry,
    HostEntry,
    LimitsSection,
    ListenEntry,
    Settings,
    TreeSection,
)

__all__ = [
    "AccessSection",
    "BrokerSection",
    "ClientEntry",
    "HostEntry",
    "KeyPath",
    "LimitsSection",
    "ListenEntry",
    "Settings",
    "TreeSection",
    "check",
    "key_lines",
    "load",
    "loads",
]
