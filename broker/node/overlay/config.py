"""Settings of one broker's place in the tree: addresses, identity, patience; and callbacks of its owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from broker.identity import PeerInfo
from broker.node.overlay.liveness import LOST_S
from broker.transport.link import Options


@dataclass(slots=True)
class OverlayConfig:
    """Settings of one broker's place in the tree; ranks and shape come from the broker's own topology.

    Attributes:
        listen_uri: where children connect (``tcp://``, ``ipc://``, ``inproc://``); None at a leaf.
        parent_uri: where the parent listens; None at rank 0.
        listen: options of the listener: flusher and budget of the broker; ``extra`` has ``curve`` and ``keys``.
        dial: the same for the parent; ``extra`` has ``curve``. ``identity``, ``batch`` and ``admit`` are filled in
            by the overlay.
        version: flux-core version we claim; peers whose first two numbers differ are refused (and refuse us).
        hostname: ours, as hello tells it; "" tells none.
        hostnames: rank -> hostname, where the hosts table names them; a hello that says otherwise is refused.
        on_parent_loss: ``rejoin`` as a new incarnation, or ``exit`` for a supervisor.
        batch: offer many messages in one to Headgate peers.
        torpid_min_s: silence after which a neighbour is sent a heartbeat. torpid_max_s: silence after which a parent
            calls a child torpid; 0 never. lost_s: silence after which a Headgate neighbour is lost, at least (see
            ``liveness``).
        hello_timeout_s: how long an answer to hello may take before the parent is dialled anew; 0 has no limit.
        backoff_s, backoff_max_s: first and longest wait between attempts to join, each drawn from 0 to it.
        goodbye_timeout_s: how long leaving waits for the parent's answer.
    """

    listen_uri: str | None = None
    parent_uri: str | None = None
    listen: Options = field(default_factory=Options)
    dial: Options = field(default_factory=Options)
    version: str = "0.88.0"
    hostname: str = ""
    hostnames: Mapping[int, str] = field(default_factory=dict)
    on_parent_loss: Literal["rejoin", "exit"] = "rejoin"
    batch: bool = True
    torpid_min_s: float = 5.0
    torpid_max_s: float = 30.0
    lost_s: float = LOST_S
    hello_timeout_s: float = 30.0
    backoff_s: float = 0.1
    backoff_max_s: float = 10.0
    goodbye_timeout_s: float = 2.0


Objection = Callable[[PeerInfo, int | None], str]
"""(peer, rank it is known as, None before hello) -> why a link to it has to end; "" when it may stay."""


def _nothing(*_what: object) -> None:
    """Nobody asked to be told."""


@dataclass(slots=True)
class Hooks:
    """Callbacks of the owner of an overlay; all run on the event loop and must not block."""

    joined: Callable[[], object] = _nothing
    """The parent answered hello, at start and after each rejoin: announce local state upward. Children that said
    hello meanwhile are answered after this."""
    parent_lost: Callable[[str], object] = _nothing
    """The parent is lost and why; open calls through it are answered, children are told to leave."""
    must_exit: Callable[[str], object] = _nothing
    """The parent is lost and the setting says exit, or it refused us for good: leave, with this reason."""
    child_changed: Callable[[int, str, bool], object] = _nothing
    """(rank, status, torpid) of a child that changed (``overlay.monitor``)."""
    status_changed: Callable[[str], object] = _nothing
    """The status of this broker's subtree changed (``overlay.health`` streams)."""
    refused: Callable[[PeerInfo, int, str], object] = _nothing
    """(peer, errno, reason): somebody wanted to join and may not."""
