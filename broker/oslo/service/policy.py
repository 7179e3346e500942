"""Who may call what through the bridge; no input or output, no clock.

Owners may everything. Others may what the first fitting rule allows, and nothing where none fits. Who has neither the
role user nor admin may nothing: no rule is about them.

The context of a request says on whose behalf it is made, with which roles and project; servers believe it. Owners may
write it, others only where the rule that lets them call says so.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from broker.errors import RpcError
from broker.identity import Credentials, Role
from broker.oslo.contract import Address

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


def check(
    rules: Sequence[CallRule],
    who: Credentials,
    address: Address,
    method: str,
    mode: str,
    *,
    ctxt: bool = False,
) -> None:
    """Let ``who`` have ``method`` called at ``address`` in this ``mode``; ``ctxt``: with a context of the caller's own.

    Raises:
        RpcError: EPERM, it is not allowed.
    """
    if who.owner:
        return
    fitting = (
        rule
        for rule in rules
        if mode in rule.modes
        and _fits(rule.methods, method)
        and _is_about(rule, who, address.exchange, address.topic)
    )
    rule = next(fitting, None)
    what = f"{mode} {method[:64]!r} at {address.exchange[:64]}/{address.topic[:64]}"
    if rule is None or not rule.allow:
        raise RpcError(errno.EPERM, f"not allowed: no rule lets you {what}")
    if ctxt and not rule.ctxt:
        text = f"not allowed: the rule that lets you {what} does not let you write its ctxt"
        raise RpcError(errno.EPERM, text)


def may_see(rules: Sequence[CallRule], who: Credentials, exchange: str, topic: str) -> bool:
    """Whether there is anything that ``who`` may call at this topic: it is then listed to them."""
    return who.owner or any(rule.allow and _is_about(rule, who, exchange, topic) for rule in rules)


def _is_about(rule: CallRule, who: Credentials, exchange: str, topic: str) -> bool:
    return (
        bool(rule.roles & who.rolemask)
        and (not rule.users or who.userid in rule.users)
        and _fits(rule.topics, topic)
        and _fits(rule.exchanges, exchange)
    )


def _fits(globs: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
