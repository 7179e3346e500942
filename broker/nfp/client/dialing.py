"""What a client is made of: its way to a broker with the right keys, and what callers name targets with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from broker.errors import ConfigError, LinkRefused
from broker.nfp.names import NAME_BYTES_MAX, Sender
from broker.nfp.peer.dealer import DealerChannel
from broker.nfp.peer.keys import PLAINTEXT, broker_key, default_base_dir, found_broker_key, own_certificate
from broker.nfp.targets import Target, parse
from broker.transport.curve import Certificate, load

Targeting = str | Iterable[str] | Target
"""``"all"``, ``"any"``, a worker's name, or several."""
BrokerKey = str | os.PathLike[str] | Mapping[str, str] | None
"""Z85, the file of a certificate, or {address: one of these}; None: not known; "": plaintext."""
OwnKey = Certificate | str | os.PathLike[str] | None
"""A certificate or its file; None: ours is kept in the folder for state."""


def dial(
    name: str,
    brokers: Sequence[str],
    server_key: BrokerKey,
    key: OwnKey,
    state_dir: Path | None,
    *,
    failover_s: float,
    open_timeout_s: float,
    insecure: bool,
    refused: Callable[[LinkRefused], None],
) -> DealerChannel:
    """The way of the client ``name`` to its brokers; see NfpClient, and DealerChannel for ``refused``.

    Raises:
        ConfigError: an address, key or name is wrong, or a file cannot be used.
    """
    folder = state_dir or default_base_dir()
    server_keys = _server_keys(server_key, folder)
    return DealerChannel(
        brokers,
        identity=name,
        sender=Sender.CLIENT,
        certificate=_certificate(key, folder, name) if server_keys else None,
        server_keys=server_keys,
        failover_s=failover_s,
        open_timeout_s=open_timeout_s,
        insecure=insecure,
        refused=refused,
    )


def target_of(given: Targeting) -> Target:
    """The target that ``given`` spells.

    Raises:
        ConfigError: it names nobody.
    """
    if isinstance(given, Target):
        return given
    if not isinstance(given, str):
        names: tuple[Any, ...] = tuple(dict.fromkeys(given))
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"target {names!r:.100}, expected names of workers")
        return Target("list", names)
    chosen = parse(given)
    if chosen is None:
        raise ConfigError(f"target {given[:100]!r}, expected all, any or names of workers")
    return chosen


def check_text(name: str, what: str) -> None:
    """Raise ConfigError unless ``name`` can be a frame: ``what`` it is begins the text."""
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX or "\0" in name:
        raise ConfigError(f"{what} {name[:64]!r}, expected 1 to {NAME_BYTES_MAX} bytes without NUL")


def _server_keys(given: BrokerKey, folder: Path) -> str | dict[str, str]:
    if isinstance(given, Mapping):
        return {endpoint: broker_key(key) for endpoint, key in given.items()}
    if given == PLAINTEXT:
        return ""
    if given is not None:
        return broker_key(os.fspath(given))
    return found_broker_key(folder) or found_broker_key(default_base_dir()) or ""


def _certificate(given: OwnKey, folder: Path, name: str) -> Certificate:
    if given is None:
        return own_certificate(folder, name)
    return given if isinstance(given, Certificate) else load(os.fspath(given))
