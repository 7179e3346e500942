"""Who is attached to this broker (``connector-local.stats-get``), in the words of the deployed connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.services.service import Service, method
from broker.serving.request import Request


class ConnectorLocal(Service):
    """Figures of the clients' links."""

    name = "connector-local"

    @method("stats-get")
    def figures(self, request: Request) -> Mapping[str, Any]:
        """-> ``{"server": {"clients", "connects"}, "allow_guest_user", "allow_root_owner"}``.

        Counts are the client's: ``txcount`` messages it was sent, ``rxcount`` messages it sent us; ``connects`` are
        all clients so far.
        """
        clients = [_client(link) for link in self.context.figures.links() if link.get("kind") == "client"]
        access = self.context.config.get("access", {})
        return {
            "server": {"clients": clients, "connects": self.context.figures.traffic()["connects"]},
            "allow_guest_user": bool(access.get("allow-guest-user", False)),
            "allow_root_owner": bool(access.get("allow-root-owner", False)),
        }


def _client(link: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "uuid": link["uuid"],
        "userid": link["userid"],
        "pid": link.get("pid", -1),
        "txcount": link.get("sent", 0),
        "rxcount": link.get("received", 0),
        "rxbacklog": link.get("queued", 0),
    }
