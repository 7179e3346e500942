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
from typing import Final

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


_OWNERS: Final = CallRule(ctxt=True)
"""As if it was the first that fits for every owner."""


def may_call(rules: Sequence[CallRule], who: Credentials, address: Address, method: str, mode: str) -> bool:
    """Whether ``who`` may have ``method`` called at ``address`` in this ``mode``."""
    rule = _first(rules, who, address, method, mode)
    return rule is not None and rule.allow


def _first(
    rules: Sequence[CallRule], who: Credentials, address: Address, method: str, mode: str
) -> CallRule | None:
    """The rule that decides."""
    if who.owner:
        return _OWNERS
    for rule in rules:
        if (
            mode in rule.modes
            and _is_about(rule, who)
            and _fits(rule.methods, method)
            and _fits(rule.topics, address.topic)
            and _fits(rule.exchanges, address.exchange)
        ):
            return rule
    return None


def may_see(rules: Sequence[CallRule], who: Credentials, exchange: str, topic: str) -> bool:
    """Whether there is anything that ``who`` may call at this topic: it is then listed to them."""
    if who.owner:
        return True
    return any(
        rule.allow and _is_about(rule, who) and _fits(rule.topics, topic) and _fits(rule.exchanges, exchange)
        for rule in rules
    )


def check(
    rules: Sequence[CallRule],
    who: Credentials,
    address: Address,
    method: str,
    mode: str,
    *,
    ctxt: bool = False,
) -> None:
    """As ``may_call``; ``ctxt``: with a context of the caller's own.

    Raises:
        RpcError: EPERM, it is not allowed.
    """
    rule = _first(rules, who, address, method, mode)
    what = f"{mode} {method[:64]!r} at {address.exchange[:64]}/{address.topic[:64]}"
    if rule is None or not rule.allow:
        raise RpcError(errno.EPERM, f"not allowed: no rule lets you {what}")
    if ctxt and not rule.ctxt:
        raise RpcError(
            errno.EPERM, f"not allowed: the rule that lets you {what} does not let you write its ctxt"
        )


def _is_about(rule: CallRule, who: Credentials) -> bool:
    return bool(rule.roles & who.rolemask) and (not rule.users or who.userid in rule.users)


def _fits(globs: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
