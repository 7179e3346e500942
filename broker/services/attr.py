"""Attributes: what a broker tells about itself, as pairs of strings (``attr.get``, ``list``, ``set``, ``rm``).

Deployed brokers know every name beforehand and refuse the rest, except below ``vendor.`` and ``test.``; so do we.
Libflux keeps the value of an attribute with flag 1 for good, so only what cannot change carries it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Final

from broker.errors import RpcError
from broker.identity import Role
from broker.services.context import Context
from broker.services.service import Service, Services, method
from broker.serving.request import Request

IMMUTABLE: Final = 1
"""Flag: never changes; clients need not ask again."""
SETTABLE: Final = 2
"""Flag: ``attr.set`` may change it. Not shown to clients, who know flag 1 only."""
FREE_PREFIXES: Final = ("vendor.", "test.")
"""Names that anybody with owner credentials may make up."""
FREE_MAX: Final = 4096
"""Made-up names kept; beyond it ENOSPC."""
TWINS: Final = ("log-level", "log-stderr-level")
"""Two names for one thing here: what the broker logs is what it keeps and what it writes."""

Value = str | Callable[[], str]


class Attr(Service):
    """The attributes of this broker; a value given as a function is called at each read."""

    name = "attr"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self._table: dict[str, tuple[Value, int]] = dict(context.attributes)

    def read(self, name: str) -> str | None:
        """The value of one attribute now; None when there is none."""
        value = self._table[name][0] if name in self._table else None
        return value() if callable(value) else value

    @method("get", allow=Role.ALL)
    def get(self, request: Request) -> Mapping[str, object]:
        """``{"name"}`` -> ``{"value", "flags"}``; ENOENT without a text."""
        name = request.field("name", str)
        value = self.read(name)
        if value is None:
            raise RpcError(errno.ENOENT)
        return {"value": value, "flags": self._table[name][1] & IMMUTABLE}

    @method("list", allow=Role.ALL)
    def names(self, request: Request) -> Mapping[str, object]:
        """-> ``{"names"}``."""
        return {"names": list(self._table)}

    @method("set")
    def set(self, request: Request) -> None:
        """``{"name", "value"}``: ENOENT for names nobody knows, EINVAL for what may not be changed."""
        name, value = request.field("name", str), request.field("value", str)
        if not self._may_set(name):
            raise RpcError(errno.EINVAL, "attribute may not be updated")
        refused = self.context.apply_attribute(name, value) if name in self._table else 0
        if refused:
            raise RpcError(refused)
        for each in TWINS if name in TWINS else (name,):
            self._table[each] = (value, SETTABLE)

    def _may_set(self, name: str) -> bool:
        if name in self._table:
            return bool(self._table[name][1] & SETTABLE)
        if not name.startswith(FREE_PREFIXES):
            raise RpcError(errno.ENOENT, "unknown attribute")
        # names are made up by callers, and would else be kept without end
        if sum(known.startswith(FREE_PREFIXES) for known in self._table) >= FREE_MAX:
            raise RpcError(errno.ENOSPC, f"{FREE_MAX} attributes of this kind are set")
        return True

    @method("rm")
    def remove(self, request: Request) -> None:
        """``{"name"}``: EPERM for what may not be changed; removing what is not there is no error."""
        name = request.field("name", str)
        if name in self._table:
            if not self._table[name][1] & SETTABLE:
                raise RpcError(errno.EPERM)
            del self._table[name]
