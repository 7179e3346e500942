"""Typed configuration: one TOML file, read at start and again on SIGHUP, frozen once it is read.

    lines     where each key stands in the text: tomllib keeps no line numbers, an error message needs them
    values    ranges that several sections share, a fault, the checks of keys and URIs
    schema    the sections and entries, each field with its unit, default, reason and off value
    nfp       the section of the NFP broker and its entries, likewise, and its rules
    oslo      the section of the node proxy for oslo.messaging and its entries, likewise
    journal   the section about what passes, on disk, likewise
    shape     what types can say: a table held against the struct that describes it
    transport_options   the tables that only one transport knows
    rules     what types cannot say: ranks that cover the tree, parents, keys, plaintext; listeners that let nobody in
    sample    what the sample file has beside the schema: its head, examples
    showing   settings as they may be shown: without secrets
    reading   file -> text -> tables -> `Settings`, or one `ConfigError` that lists every problem by line;
              ``--set section.key=value`` on top

Imported by the node and by the command line; the other rooms get plain values.
"""

from broker.settings.journal import JournalSection
from broker.settings.lines import KeyPath, key_lines
from broker.settings.nfp import KeyEntry, NfpSection, RuleEntry, TaskEntry
from broker.settings.oslo import OsloBacklog, OsloCallEntry, OsloKeyEntry, OsloRuleEntry, OsloSection
from broker.settings.reading import apply, check, load, load_journal, load_wing, loads, read, wing_settings
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
from broker.settings.showing import shown

__all__ = [
    "AccessSection",
    "BrokerSection",
    "ClientEntry",
    "HostEntry",
    "JournalSection",
    "KeyEntry",
    "KeyPath",
    "LimitsSection",
    "ListenEntry",
    "NfpSection",
    "OsloBacklog",
    "OsloCallEntry",
    "OsloKeyEntry",
    "OsloRuleEntry",
    "OsloSection",
    "RuleEntry",
    "Settings",
    "TaskEntry",
    "TreeSection",
    "apply",
    "check",
    "key_lines",
    "load",
    "load_journal",
    "load_wing",
    "loads",
    "read",
    "shown",
    "wing_settings",
]
