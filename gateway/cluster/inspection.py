"""What ``inspect`` says of a container of a cluster, docker and podman alike, and what ``init`` printed. Pure."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from gateway.cluster import compose
from gateway.cluster.engine import Member, State

SERVICE: Final = "com.docker.compose.service"
TREE: Final = "tree"
"""The network of those who are not cut off."""
_STATES: Final[Mapping[str, State]] = {
    "running": "running",
    "paused": "paused",
    "created": "starting",
    "configured": "starting",
    "initialized": "starting",
    "restarting": "starting",
}
"""What docker and podman say -> what we say; everything else has exited."""


def member_of(seen: Mapping[str, Any], project: str) -> Member:
    """A member from what ``inspect`` says of its container, which docker and podman say alike."""
    name, told = service(seen), seen["State"]
    rank = rank_of(name)
    now: State = _STATES.get(status(seen), "exited")
    if now == "running" and rank is not None and f"{project}_{TREE}" not in networks(seen):
        now = "partitioned"
    port = published(seen)
    return Member(
        name=name if rank is None else f"rank-{rank}",
        rank=rank,
        state=now,
        id=str(seen["Id"])[:12],
        uri=f"http://127.0.0.1:{port}" if port else "",
        since=_seconds(told.get("FinishedAt" if now == "exited" else "StartedAt")),
        why=_why(int(told.get("ExitCode") or 0)) if now == "exited" else "",
        restarts=int(seen.get("RestartCount") or 0),
    )


def rank_of(service: str) -> int | None:
    """The rank of a service of the compose file; None of what is no broker.

    >>> rank_of("broker-12"), rank_of("gateway")
    (12, None)
    """
    number = service.removeprefix("broker-")
    return int(number) if number != service and number.isdecimal() else None


def token_in(lines: str) -> str:
    """The first bearer token in what ``init`` printed; "" without one."""
    from gateway.identity.tokens import PREFIX

    return next((word for word in lines.replace('"', " ").split() if word.startswith(PREFIX)), "")


def status(seen: Mapping[str, Any]) -> str:
    """What the engine says of its state; "" nothing."""
    return str(seen["State"].get("Status") or "")


def service(seen: Mapping[str, Any]) -> str:
    """Its name in the compose file; "" of what is of none."""
    return str((seen["Config"].get("Labels") or {}).get(SERVICE) or "")


def networks(seen: Mapping[str, Any]) -> frozenset[str]:
    """Names of the networks that it is on."""
    return frozenset(seen["NetworkSettings"].get("Networks") or ())


def published(seen: Mapping[str, Any]) -> int:
    """The port of this machine that leads to the dashboard; 0 without one."""
    ports = seen["NetworkSettings"].get("Ports") or {}
    places = ports.get(f"{compose.GATEWAY_PORT}/tcp") or ()
    return next((int(place["HostPort"]) for place in places if place.get("HostPort")), 0)


def _why(code: int) -> str:
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(code - 128).name}"
    return f"exit code {code}"


def _seconds(text: object) -> float:
    """Seconds since 1970; 0.0 of what is no time."""
    with contextlib.suppress(TypeError, ValueError):
        return max(0.0, datetime.fromisoformat(str(text)).timestamp())
    return 0.0
