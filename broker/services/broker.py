"""The broker itself as a service (``broker.stats-get``, ``stats-clear``, ``getenv``, ``conf-builtin``)."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

from broker.errors import RpcError
from broker.identity import Role
from broker.services.service import Request, Service, method


class BrokerSelf(Service):
    """Figures and environment of this process."""

    name = "broker"

    @method("stats-get", allow=Role.USER)
    def figures(self, request: Request) -> Mapping[str, Any]:
        """-> ``{"tx", "rx"}``: messages by type, as deployed.

        ``{"detail": true}`` -> all figures and, to the owner, every link. ``{"format": "prometheus"}`` -> ``{"text"}``.
        """
        asked = request.json() if request.message.payload_part else {}
        if asked.get("format") == "prometheus":
            return {"text": self.context.metrics()}
        traffic = self.context.traffic()
        if asked.get("detail") is not True:
            return {"tx": traffic["tx"], "rx": traffic["rx"]}
        if not request.owner:
            return traffic
        return {**traffic, "peers": list(self.context.links())}

    @method("users", allow=Role.ADMIN)
    def users(self, _request: Request) -> Mapping[str, Any]:
        """-> ``{"users": [{"userid", "owner", "links", "pending", "services", "subscriptions", "outbox_bytes",
        "received"}], "limits": {...}}``: what the clients of this broker hold, by user, the busiest first.
        """
        return self.context.users()

    @method("calls", allow=Role.USER)
    def calls(self, request: Request) -> Mapping[str, Any]:
        """-> ``{"bounds_ns", "methods": {METHOD: {"calls", "open", "errors": {ERRNO: N}, "total_ns", "buckets"}},
        "services": {NAME: {"provider", "builtin"}}}``: rate, errors and duration of the calls that clients made at this
        broker; to owner and admin with ``"last_error": {"errnum", "text", "userid", "time"}`` where there was one.
        """
        return self.context.call_stats(bool(request.message.rolemask & (Role.OWNER | Role.ADMIN)))

    def clear_stats(self) -> None:
        """Start the counts again."""
        self.context.clear_traffic()

    @method("getenv")
    def getenv(self, request: Request) -> Mapping[str, Any]:
        """``{"names"}`` -> ``{"env"}``: those that are set."""
        names = request.field("names", list)
        return {
            "env": {name: os.environ[name] for name in names if isinstance(name, str) and name in os.environ}
        }

    @method("conf-builtin", allow=Role.ALL)
    def conf_builtin(self, request: Request) -> Mapping[str, Any]:
        """``{"keys"}`` -> ``{"values"}``: nothing is compiled in here, so every key is EINVAL."""
        for key in request.field("keys", list):
            raise RpcError(errno.EINVAL, f"{str(key)[:64]}: invalid key")
        return {"values": {}}
