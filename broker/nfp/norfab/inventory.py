"""NorFab's inventory, as far as scripts and the adapter use it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.nfp.inventory import Datastore
from broker.nfp.peer.keys import PLAINTEXT, default_base_dir, found_broker_key


class Inventory:
    """NorFab's inventory, from a YAML file or a mapping.

    Attributes:
        path: of the file; None for a mapping. base_dir: its folder. broker, workers, topology, hooks: its sections.

    Raises:
        ConfigError: the file cannot be used; file, line and what is wrong.
    """

    def __init__(
        self,
        path: str | None = None,
        data: Mapping[str, Any] | None = None,
        base_dir: str | None = None,
    ) -> None:
        self.path = None if data else os.path.abspath(path or "inventory.yaml")
        self.base_dir = os.path.abspath(
            base_dir or (os.path.dirname(self.path) if self.path else os.getcwd())
        )
        if self.path:
            datastore = Datastore(self.path)
            datastore.load()
            data = datastore.whole()
        self.data = dict(data or {})
        self.broker: dict[str, Any] = self.data.get("broker") or {}
        self.workers: dict[str, Any] = self.data.get("workers") or {}
        self.topology: dict[str, Any] = self.data.get("topology") or {}
        self.hooks: dict[str, Any] = self.data.get("hooks") or {}

    def server_key(self) -> str | None:
        """The broker's key: the shared one, else that of our broker, else that of NorFab's beside the inventory."""
        if self.broker.get("zmq_auth") is False:
            return PLAINTEXT
        if self.broker.get("shared_key") or found_broker_key(default_base_dir()):
            return self.broker.get("shared_key") or None
        theirs = Path(self.base_dir, "__norfab__", "files", "broker", "public_keys", "broker.key")
        return str(theirs) if theirs.exists() else None
