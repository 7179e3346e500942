"""Who is who, who may have which task run, who may offer which service (NFP, "Security" is TBD in the text; pure).

Rules are tried in order and the first that fits decides; behind the configured ones stand: users may call everything,
guests nothing. Owners need no rule. Some tasks owners keep to themselves (``OWNERS_ONLY``): for anybody else they need
a rule that spells the task without a wildcard, so that "users may call everything" never includes a shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import Final

from broker.identity import USERID_UNKNOWN
from broker.nfp.bodies import UNREADABLE
from broker.nfp.names import CLIENT_OF_WORKER, INTERNAL, MMI_BROKER, MMI_WORKER, NAME_BYTES_MAX, SID
from broker.nfp.principal import Principal, Standing
from broker.settings.nfp import KeyEntry, RuleEntry, TaskEntry

DECISIONS_MAX: Final = 4096
"""Decisions remembered, the latest used."""
DENY: Final = "deny"
REFUSED: Final = "none"

OTHERS: Final = "get_inventory_of_others"
"""Not a task that anyone sends: what ``get_inventory`` for another worker's name is decided as."""
OWNERS_ONLY: Final = (
    (MMI_BROKER, ("restart", "shutdown", "disconnect", "unpin", "reload", "get_logs")),
    (MMI_WORKER, ("restart", "shutdown", "disconnect")),
    (SID, (OTHERS,)),
    ("*", ("run_shell*", "*shell_cmd")),
)
"""Service and tasks, as globs: they end processes, show secrets, or run what they are given."""


USUAL: Final = (RuleEntry(standings=("user",)), RuleEntry(standings=("guest",), allow=False))
"""The rules behind the configured ones."""

Fits = Callable[[str], object]


def _globs(patterns: Iterable[str]) -> Fits:
    """One test for all of ``patterns``; they are compiled once."""
    return re.compile("|".join(translate(pattern) for pattern in patterns) or r"(?!)").match


class _Rule:
    """A rule made ready."""

    __slots__ = ("allow", "names", "service", "spelt", "standings", "task")

    def __init__(self, rule: RuleEntry) -> None:
        self.allow = rule.allow
        self.service = _globs(rule.services)
        self.task = _globs(rule.tasks)
        self.spelt = frozenset(rule.tasks)
        self.standings = frozenset(rule.standings)
        self.names = rule.names

    def fits(self, standing: Standing, service: str, task: str, name: str, holder: str) -> bool:
        if str(standing) not in self.standings or not (self.service(service) and self.task(task)):
            return False
        return not self.names or any(_is_named(name, holder, pattern) for pattern in self.names)


def _is_named(name: str, holder: str, pattern: str) -> bool:
    """A key's own characters include those of globs: ``key:...`` has to be spelt."""
    if pattern == holder or fnmatchcase(name, pattern):
        return True
    return not holder.startswith("key:") and fnmatchcase(holder, pattern)


_NOBODY: Final[frozenset[str]] = frozenset()


def _by_name(keys: Iterable[KeyEntry]) -> dict[str, frozenset[str]]:
    """Name -> keys that the list calls so and does not refuse; several of one person may share a name."""
    found: dict[str, frozenset[str]] = {}
    for entry in keys:
        if entry.name and entry.standing != REFUSED:
            found[entry.name] = found.get(entry.name, _NOBODY) | {entry.key}
    return found


class Access:
    """The rules of one broker.

    Args:
        keys: the list of keys.
        rules: what is allowed and denied, in order.
        tasks: which tasks may run twice, in order.
        unlisted: the standing of keys that are not listed and of peers without CURVE, or "deny".
        offer_unlisted: whether those may offer services as workers.
        results: who may fetch the results of a job by its id: "holder" (whose job it is), "user" or "anyone".
    """

    def __init__(
        self,
        keys: Iterable[KeyEntry] = (),
        rules: Iterable[RuleEntry] = (),
        tasks: Iterable[TaskEntry] = (),
        *,
        unlisted: str = "user",
        offer_unlisted: bool = True,
        results: str = "holder",
    ) -> None:
        self._unlisted = None if unlisted == DENY else Standing(unlisted)
        self._offer_unlisted = offer_unlisted
        self._results = results
        self._keys = {entry.key: entry for entry in keys}
        self._named_keys = _by_name(self._keys.values())
        self._offers = {key: _globs(entry.services) for key, entry in self._keys.items()}
        self._rules = tuple(_Rule(rule) for rule in (*rules, *USUAL))
        self._named = any(rule.names for rule in self._rules)
        self._kept = tuple((_globs((service,)), _globs(tasks)) for service, tasks in OWNERS_ONLY)
        self._tasks = tuple(
            (_globs((each.service,)), _globs((each.task,)), each.idempotent) for each in tasks
        )
        self._decided = lru_cache(DECISIONS_MAX)(self._decide)
        self._known = lru_cache(DECISIONS_MAX)(self._look_up)

    def principal_of(self, key: str, name: str) -> Principal | None:
        """Who a peer is.

        ``key`` is Z85, "" without CURVE; ``name`` its identity, which counts only then. None: it is refused.
        """
        entry = self._keys.get(key)
        if entry is None:
            if self._unlisted is None:
                return None
            return Principal(f"key:{key}" if key else f"peer:{name}", self._unlisted, key=key)
        if entry.standing == REFUSED:
            return None
        standing, called = Standing(entry.standing), entry.name or key[:8]
        if entry.userid is None:
            return Principal(f"key:{key}", standing, USERID_UNKNOWN, key, called)
        return Principal(f"uid:{entry.userid}", standing, entry.userid, key, called)

    def keys_of(self, name: str) -> frozenset[str]:
        """The keys that alone may come as ``name``: those that the list calls so; none when it does not know the name.

        ``<worker>-NFPClient`` is a name of the worker's, too, whether it is listed itself or not.
        """
        keys = self._named_keys.get(name, _NOBODY)
        if name.endswith(CLIENT_OF_WORKER):
            keys |= self._named_keys.get(name.removesuffix(CLIENT_OF_WORKER), _NOBODY)
        return keys

    def is_listed(self, key: str) -> bool:
        """Tell whether the list of keys has ``key``."""
        return key in self._keys

    def may_call(self, principal: Principal, service: str, task: str) -> bool:
        """Tell whether ``principal`` may have ``task`` of ``service`` run; "" is a body that names none."""
        if principal.standing is Standing.OWNER:
            return True
        if len(task) > NAME_BYTES_MAX or len(service) > NAME_BYTES_MAX:
            return False
        if self._named:
            return self._decided(principal.standing, service, task, principal.name, principal.holder)
        return self._decided(principal.standing, service, task)

    def _decide(self, standing: Standing, service: str, task: str, name: str = "", holder: str = "") -> bool:
        if task == UNREADABLE:
            return False
        kept = any(of_service(service) and of_task(task) for of_service, of_task in self._kept)
        for rule in self._rules:
            fits = rule.fits(standing, service, task, name, holder)
            if fits and not (rule.allow and kept and task not in rule.spelt):
                return rule.allow
        return False

    def denial(self, principal: Principal, service: str, task: str) -> str:
        """What to answer when ``may_call`` said no."""
        if task == UNREADABLE:
            return "not allowed: the body begins like a JSON object and cannot be read as one"
        what = f"{service} {task[:64]}".rstrip()
        return f"not allowed: a {principal.standing} may not call {what}"

    def may_read(self, principal: Principal, holder: str) -> bool:
        """Tell whether ``principal`` may fetch the results of a job of ``holder`` (NFP, "Job Persistence")."""
        if self._results == "anyone" or principal.may_see(holder):
            return True
        return self._results == "user" and principal.standing is Standing.USER

    def may_offer(self, principal: Principal, service: str) -> bool:
        """Tell whether a worker of ``principal`` may register for ``service``.

        The broker's own services and "all" nobody may offer; other names of the text (``fss.service.broker``) are for
        what runs in this process or is an owner's.
        """
        if service in INTERNAL or service == "all":
            return False
        if service.endswith(".service.broker") or service == MMI_WORKER:
            return principal.owner
        offered = self._offers.get(principal.key)
        return bool(offered(service)) if offered is not None else self._may_work_unlisted(principal)

    def may_work(self, principal: Principal) -> bool:
        """Tell whether ``principal`` may offer any service at all: whether it can be a worker."""
        entry = self._keys.get(principal.key)
        return bool(entry.services) if entry is not None else self._may_work_unlisted(principal)

    def _may_work_unlisted(self, principal: Principal) -> bool:
        if principal.key or principal.holder.startswith("peer:"):
            return self._offer_unlisted
        return principal.owner  # in this process, or from Flux

    def idempotent(self, service: str, task: str) -> bool | None:
        """Tell whether ``task`` may run twice, by the first entry that fits; None when none does."""
        if not self._tasks or len(task) > NAME_BYTES_MAX:
            return None
        return self._known(service, task)

    def _look_up(self, service: str, task: str) -> bool | None:
        fitting = (safe for of_service, of_task, safe in self._tasks if of_service(service) and of_task(task))
        return next(fitting, None)
