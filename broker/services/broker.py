"""The broker itself as a service (``broker.stats-get``, ``calls``, ``drain``, ``disconnect-client``, ``getenv``)."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

from broker.errors import RpcError
from broker.identity import Role
from broker.services.context import Context
from broker.services.service import Service, Services, method
from broker.services.wings import WINGS, Figures, Wings
from broker.serving.request import LATER, Later, Request


class BrokerSelf(Service):
    """Figures and environment of this process."""

    name = "broker"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self._wings = Wings(context)

    @method("stats-get", allow=Role.USER)
    def figures(self, request: Request) -> Mapping[str, Any]:
        """-> ``{"tx", "rx"}``: messages by type, as deployed.

        ``{"detail": true}`` -> all figures and, to the owner, every link. ``{"format": "prometheus"}`` -> ``{"text"}``.
        """
        asked = request.json() if request.message.payload_part else {}
        if asked.get("format") == "prometheus":
            return {"text": self.context.figures.text()}
        traffic = self.context.figures.traffic()
        if asked.get("detail") is not True:
            return {"tx": traffic["tx"], "rx": traffic["rx"]}
        if not request.owner:
            return traffic
        return {**traffic, "peers": list(self.context.figures.links())}

    @method("users", allow=Role.ADMIN)
    def users(self, _request: Request) -> Mapping[str, Any]:
        """-> ``{"users": [{"userid", "owner", "links", "pending", "services", "subscriptions", "outbox_bytes",
        "received"}], "limits": {...}}``: what the clients of this broker hold, by user, the busiest first.
        """
        return self.context.figures.users()

    @method("calls", allow=Role.USER)
    def calls(self, request: Request) -> Mapping[str, Any] | Later:
        """-> ``{"bounds_ns", "methods": {METHOD: {"calls", "open", "errors": {ERRNO: N}, "total_ns", "buckets"}},
        "others": {KIND: {NAME: as of a method}}, "silent": [WING], "services": {NAME: {"provider", "builtin"}}}``:
        rate, errors and duration of the calls that clients made at this broker.

        To owner and admin with ``"last_error": {"errnum", "text", "userid", "time"}`` where there was one, and with the
        other kinds: ``event``, the topics of the events that this broker numbered; ``nfp``, jobs by service and task;
        ``oslo``, messages by pipeline, exchange and topic. A wing that is attached to this broker is asked; one that
        does not answer is silent.
        """
        trusted = bool(request.message.rolemask & (Role.OWNER | Role.ADMIN))
        told = {**self.context.figures.calls(trusted), "silent": []}
        asked = [
            kind for kind in WINGS if trusted and not told["services"].get(kind, {}).get("builtin", True)
        ]
        if not asked:
            return told

        def answer(found: dict[str, Figures], silent: list[str]) -> None:
            request.respond({**told, "others": {**told["others"], **found}, "silent": silent})

        self._wings.ask(asked, answer)
        return LATER

    def clear_stats(self) -> None:
        """Start the counts again."""
        self.context.figures.clear()

    @method("drain")
    def drain(self, request: Request) -> Mapping[str, Any]:
        """``{"rank"}`` -> ``{}``, then this broker leaves as at SIGTERM: it accepts no more, open calls end, the
        brokers below leave first. ``rank`` is its own, so that a call that went elsewhere ends nothing; 0 ends the
        instance.
        """
        if request.field("rank", int) != self.context.rank:
            raise RpcError(errno.EINVAL, f"this is rank {self.context.rank}")
        errnum = self.context.leave(f"drained by userid {request.message.userid}")
        if errnum:
            raise RpcError(errnum, "this broker is ended by the program that runs it")
        return {}

    @method("disconnect-client")
    def disconnect_client(self, request: Request) -> Mapping[str, Any]:
        """``{"uuid"}`` -> ``{}``: the link of that client is closed (``peers`` of ``stats-get`` has them); its open
        calls end, and it may connect anew.
        """
        uuid = request.field("uuid", str)
        errnum = self.context.disconnect_client(uuid, f"ended by userid {request.message.userid}")
        if errnum:
            raise RpcError(errnum, f"no client {uuid[:36]} at this broker")
        return {}

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
