"""What the bridge is told (plain values; ``settings.oslo`` is the same for people)."""

from __future__ import annotations

from dataclasses import dataclass

from broker.identity import Role
from broker.oslo.contract import Settings

CALL, CAST, FANOUT = "call", "cast", "fanout"


@dataclass(frozen=True, slots=True)
class CallRule:
    """Who may call what; the first that fits decides. All but the last two are globs, bits or values to fit.

    ``roles``: bits of which the caller has to have one. ``users``: none is everybody. ``ctxt``: the caller may also say
    what stands in the request's context, which servers believe: who asks, with which roles.
    """

    exchanges: tuple[str, ...] = ("*",)
    topics: tuple[str, ...] = ("*",)
    methods: tuple[str, ...] = ("*",)
    modes: tuple[str, ...] = (CALL,)
    roles: int = int(Role.USER)
    users: tuple[int, ...] = ()
    allow: bool = True
    ctxt: bool = False


@dataclass(frozen=True, slots=True)
class FluxBridgeConfig:
    """One bridge.

    Attributes:
        client: how it finds the pipelines.
        rules: who may call what, apart from owners; after them nobody.
        call_timeout_s: how long a call waits when it does not say.
        call_timeout_max_s: the most that it may say.
        notify: (exchange, topic) whose notifications are published; () none.
        notify_pool: the pool that listens to them.
        notify_public: publish them for everybody; False: for owners.
    """

    client: Settings
    rules: tuple[CallRule, ...] = ()
    call_timeout_s: float = 60.0
    call_timeout_max_s: float = 3600.0
    notify: tuple[tuple[str, str], ...] = (("openstack", "notifications"),)
    notify_pool: str = "headgate"
    notify_public: bool = False
