"""A limit on the bytes that wait for all links of a process together, accounted by user.

Accounts are by user; a form that many wait for, such as one large event, counts once and is charged to the outbox that
holds it first.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from broker.transport.outbox import Outbox


class Account:
    """The bytes that wait for the links of one user; a link without a named user has an account of its own.

    Attributes:
        limit_bytes: beyond it the user's longest outbox is ended; 0: only the budget counts.
        charged_bytes: what the user holds; a large form that others hold, too, is charged to its first holder.
        outboxes: the user's outboxes in which something waits.
    """

    __slots__ = ("__weakref__", "charged_bytes", "limit_bytes", "name", "outboxes")

    def __init__(self, name: str = "", limit_bytes: int = 0) -> None:
        self.name = name
        self.limit_bytes = limit_bytes
        self.charged_bytes = 0
        self.outboxes: set[Outbox[Any]] = set()

    @property
    def surplus_bytes(self) -> int:
        """The bytes that the user holds besides one message."""
        return self.charged_bytes - max((outbox.single_bytes for outbox in self.outboxes), default=0)

    def longest(self) -> Outbox[Any]:
        """The outbox that ends first."""
        return max(self.outboxes, key=lambda outbox: outbox.charged_bytes)


class Budget:
    """Queued bytes of all links together; beyond ``limit_bytes`` links are ended until it holds.

    It is the longest outbox of the user who holds most besides one message: nobody is ended for a single message while
    somebody holds more than that, and a message that is alone here is never too much.
    """

    __slots__ = ("_accounts", "_shared", "accounts", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int = 512 << 20) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.accounts: set[Account] = set()
        self._accounts: WeakValueDictionary[Hashable, Account] = WeakValueDictionary()
        self._shared: dict[int, tuple[int, dict[Outbox[Any], int]]] = {}

    def account(self, user: Hashable, limit_bytes: int) -> Account:
        """The account of all links of ``user``."""
        account = self._accounts.get(user)
        if account is None:
            account = self._accounts[user] = Account(str(user))
        account.limit_bytes = limit_bytes
        return account

    def hold(self, outbox: Outbox[Any], form: object, size: int) -> None:
        """Count a large form, once, and charge it to the outbox that holds it first."""
        _size, holders = self._shared.setdefault(id(_buffer_of(form)), (size, {}))
        if not holders:
            self.charge(outbox, size)
        holders[outbox] = holders.get(outbox, 0) + 1

    def release(self, outbox: Outbox[Any], form: object) -> None:
        """``outbox`` has sent a large form, or never will; the next one of those that still hold it pays for it."""
        key = id(_buffer_of(form))
        size, holders = self._shared[key]
        holders[outbox] -= 1
        if holders[outbox]:
            return
        payer = next(iter(holders))
        del holders[outbox]
        if not holders:
            del self._shared[key]
        if payer is outbox:
            self.charge(outbox, -size)
            if holders:
                self.charge(next(iter(holders)), size)

    def charge(self, outbox: Outbox[Any], size: int) -> None:
        """``outbox`` holds so many bytes more."""
        assert outbox.account is not None
        self.used_bytes += size
        outbox.charged_bytes += size
        outbox.account.charged_bytes += size

    def enforce(self, account: Account) -> None:
        """Something was queued for ``account``: end links until its limit and the budget hold."""
        limit = account.limit_bytes
        while limit and account.charged_bytes > limit and account.surplus_bytes:
            account.longest().overflow(
                f"{account.charged_bytes} bytes wait for user {account.name}, the limit of one user is {limit}"
            )
        while self.used_bytes > self.limit_bytes and self.accounts:
            worst = max(self.accounts, key=lambda each: (each.surplus_bytes, each.charged_bytes))
            if not worst.surplus_bytes and len(self.accounts) == 1:
                return
            worst.longest().overflow(
                f"all outboxes together hold {self.used_bytes} bytes, the budget is {self.limit_bytes}"
            )


def _buffer_of(form: object) -> object:
    """The part of a form that several links share: the bytes of a frame, or the payload of a message in parts."""
    if isinstance(form, list) and len(form) > 1 and isinstance(form[-2], memoryview):
        form = form[-2]
    return form.obj if isinstance(form, memoryview) else form
