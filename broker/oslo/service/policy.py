"""Who may call what through the face; no input or output, no clock.

Owners may everything. Others may what the first fitting rule allows, and nothing where none fits. Who has neither the
role user nor admin may nothing: no rule is about them.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from fnmatch import fnmatchcase

from broker.errors import RpcError
from broker.identity import Credentials
from broker.oslo.contract import Address
from broker.oslo.service.config import CallRule


def may_call(rules: Sequence[CallRule], who: Credentials, address: Address, method: str, mode: str) -> bool:
    """Whether ``who`` may have ``method`` called at ``address`` in this ``mode``."""
    if who.owner:
        return True
    for rule in rules:
        if (
            mode in rule.modes
            and _is_about(rule, who)
            and _fits(rule.methods, method)
            and _fits(rule.topics, address.topic)
            and _fits(rule.exchanges, address.exchange)
        ):
            return rule.allow
    return False


def may_see(rules: Sequence[CallRule], who: Credentials, exchange: str, topic: str) -> bool:
    """Whether there is anything that ``who`` may call at this topic: it is then listed to them."""
    if who.owner:
        return True
    return any(
        rule.allow and _is_about(rule, who) and _fits(rule.topics, topic) and _fits(rule.exchanges, exchange)
        for rule in rules
    )


def check(rules: Sequence[CallRule], who: Credentials, address: Address, method: str, mode: str) -> None:
    """As ``may_call``.

    Raises:
        RpcError: EPERM, it is not allowed.
    """
    if not may_call(rules, who, address, method, mode):
        text = f"not allowed: no rule lets you {mode} {method[:64]!r} at {address.exchange[:64]}/{address.topic[:64]}"
        raise RpcError(errno.EPERM, text)


def _is_about(rule: CallRule, who: Credentials) -> bool:
    return bool(rule.roles & who.rolemask) and (not rule.users or who.userid in rule.users)


def _fits(globs: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
