"""Typed configuration: one TOML file, read at start and again on SIGHUP, frozen once it is read.

    lines     where each key stands in the text: tomllib keeps no line numbers, an error message needs them
    schema    the sections and entries, each field with its unit, default, reason and off value
    limits    the section about what a peer may cost, documented alike
    nfp       the section of the NFP broker and its entries, likewise
    oslo      the section of the node proxy for oslo.messaging and its entries, likewise
    journal   the section about what passes, on disk, likewise
    ranges    types of values that several sections share
    faults    a fault, and the checks of keys and URIs
    shape     what types can say: a table held against the struct that describes it
    transport_options   the tables that only one transport knows
    rules     what types cannot say: ranks that cover the tree, parents, keys, plaintext; ``nfp_rules`` of `[nfp]`,
              ``oslo_rules`` of `[oslo]`, ``journal_rules`` of `[journal]`
    doors     listeners at which nobody is ever let in
    sample    what the sample file has beside the schema: its head, examples
    showing   settings as they may be shown: without secrets
    assignments   ``--set section.key=value``
    reading   file -> text -> tables -> `Settings`, or one `ConfigError` that lists every problem by line

Imported by the node and by the command line; the other rooms get plain values.
"""

from broker.settings.journal import JournalSection
from broker.settings.limits import LimitsSection
from broker.settings.lines import KeyPath, key_lines
from broker.settings.nfp import KeyEntry, NfpSection, RuleEntry, TaskEntry
from broker.settings.oslo import OsloBacklog, OsloCallEntry, OsloKeyEntry, OsloRuleEntry, OsloSection
from broker.settings.reading import apply, check, load, load_journal, load_nfp, load_oslo, loads, read
from broker.settings.schema import (
    AccessSection,
    BrokerSection,
    ClientEntry,
    HostEntry,
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
    "load_nfp",
    "load_oslo",
    "loads",
    "read",
    "shown",
]
