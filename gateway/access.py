"""What web users may do: rules of role x kind x topic prefix, the longest matching prefix decides (pure).

How a question is answered. For each role of the user by itself:

1. of the rules for this role and kind, those whose prefix the topic begins with are taken;
2. the longest prefix decides; where a rule allows and another denies the same prefix, deny wins;
3. where no rule matches, the default decides: *owner* everything, *admin* call and subscribe, *user* nothing.

Topics of events that programs take the owner's word for (`broker.wire.topic.RESERVED`) only the owner publishes.

The user may when any of its roles may. A deny therefore takes a right away from the role it names, and from nobody
who has the right by another role: whoever must not, must not have such a role.

Prefixes are plain strings as in Flux: ``job`` matches ``job.info`` and ``jobs.list``; write ``job.`` to mean the
service alone. A subscription asks for a whole prefix (``allows_pattern``): the rules must allow the prefix itself;
what is denied below it is filtered from each delivery, because every event is asked for by its own topic, too.

The broker behind the gateway has rules of its own, and applies them to the stamp of each message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from broker.wire.topic import is_reserved
from gateway.principal import ROLE_NAMES

if TYPE_CHECKING:
    from gateway.settings.schema import RuleEntry

KINDS: Final = ("call", "publish", "subscribe", "register")
"""What a rule can be about: calls by topic, events published and subscribed by topic, services registered by name."""
CACHE_MAX: Final = 8192
"""Answers remembered; beyond it all are forgotten and found again as needed."""
CACHED_BYTES: Final = 256
"""Longer topics are not remembered, which bounds the memory of the answers."""
DEFAULTS: Final[dict[str, frozenset[str]]] = {
    "owner": frozenset(KINDS),
    "admin": frozenset(("call", "subscribe")),
    "user": frozenset(),
}
"""Role -> kinds it has everywhere when no rule says otherwise."""


PRESETS: Final = {
    "viewer": (
        *("broker.calls", "broker.stats-get", "overlay.topology", "overlay.health"),
        *("state-machine.get", "attr.get"),
    )
}
"""What a preset of rules lets a role call: of *viewer*, what the dashboard's views of brokers and calls are made of."""


class _Table:
    """The rules of one role and kind: prefix -> verdict, longest prefixes first."""

    __slots__ = ("_lengths", "_ruled", "_verdicts")

    def __init__(self, default: bool) -> None:
        self._verdicts: dict[bytes, bool] = {b"": default}
        self._ruled: set[bytes] = set()
        self._lengths: list[int] = [0]

    def add(self, verdicts: dict[bytes, bool]) -> None:
        self._verdicts.update(verdicts)
        self._ruled.update(verdicts)
        self._lengths = sorted({len(prefix) for prefix in self._verdicts}, reverse=True)

    def verdict(self, topic: bytes) -> bool:
        verdicts = self._verdicts
        for length in self._lengths:
            if length <= len(topic):
                found = verdicts.get(topic[:length])
                if found is not None:
                    return found
        return False

    def decisive(self, topic: bytes) -> bytes | None:
        """The prefix of the rule that decides about ``topic``; None: no rule does, the default counts."""
        for length in self._lengths:
            prefix = topic[:length]
            if length <= len(topic) and prefix in self._ruled:
                return prefix
        return None


class Access:
    """The rules of one gateway, and their answers.

    Args:
        rules: in any order; their order means nothing.
    """

    __slots__ = ("_answers", "_tables")

    def __init__(self, rules: Iterable[RuleEntry] = ()) -> None:
        self._answers: dict[tuple[int, str, bytes], bool] = {}
        self._tables = {(role, kind): _Table(kind in DEFAULTS[role]) for role in ROLE_NAMES for kind in KINDS}
        for place, verdicts in _verdicts(rules).items():
            self._tables[place].add(verdicts)

    def allows(self, roles: int, kind: str, topic: str | bytes) -> bool:
        """Whether a user with the role bits ``roles`` may do ``kind`` with ``topic``; remembered.

        >>> owner, user = 1, 2
        >>> Access().allows(owner, "call", "attr.get"), Access().allows(user, "call", "attr.get")
        (True, False)
        """
        name = topic if isinstance(topic, bytes) else _encoded(topic)
        key = (int(roles), kind, name)
        found = self._answers.get(key)
        if found is None:
            found = any(self._verdict(role, kind, name) for role in _names(roles))
            if len(name) <= CACHED_BYTES:
                if len(self._answers) >= CACHE_MAX:
                    self._answers.clear()
                self._answers[key] = found
        return found

    def allows_pattern(self, roles: int, prefix: str | bytes) -> bool:
        """Whether a user with the role bits ``roles`` may subscribe to everything that begins with ``prefix``.

        The verdict on the prefix itself covers all that begins with it, except what a rule below it denies; that
        is filtered from each delivery.
        """
        return self.allows(roles, "subscribe", prefix)

    def roles_for(self, kind: str, topic: str | bytes) -> list[str]:
        """Names of the roles that may do ``kind`` with ``topic``, so that a refusal can say which one is needed."""
        name = topic if isinstance(topic, bytes) else _encoded(topic)
        return [role for role in ROLE_NAMES if self._verdict(role, kind, name)]

    def explain_denial(self, roles: int, kind: str, topic: bytes) -> str:
        """Say what denies a user with the role bits ``roles`` to do ``kind`` with ``topic``, of each of its roles.

        >>> Access().explain_denial(2, "subscribe", b"job.end")
        'no rule lets user subscribe'
        """
        said = []
        for role in _names(roles):
            prefix = self._tables[role, kind].decisive(topic)
            if prefix is None:
                said.append(f"no rule lets {role} {kind}")
            else:
                shown = prefix.decode("utf-8", "replace")
                said.append(f'deny rule: roles = ["{role}"], kinds = ["{kind}"], prefixes = ["{shown}"]')
        return "; ".join(said) or "it has no role"

    def _verdict(self, role: str, kind: str, name: bytes) -> bool:
        if kind == "publish" and is_reserved(name, ROLE_NAMES[role]):
            return False
        return self._tables[role, kind].verdict(name)


def preset_for(kind: str, topic: str) -> str:
    """Name the preset of rules that would let a role do this; "" where none does.

    >>> preset_for("call", "attr.get"), preset_for("publish", "attr.get")
    ('viewer', '')
    """
    asked = "broker.calls" if topic in ("gateway.calls", "gateway.ranks") else topic
    return next((name for name, topics in PRESETS.items() if kind == "call" and asked in topics), "")


def rule_for(kind: str, topic: str) -> str:
    """Describe the entry of ``[[rules]]`` that would help.

    >>> rule_for("call", "attr.get"), rule_for("publish", "job.end")
    ('preset = "viewer"', 'kinds = ["publish"], prefixes = ["job.end"]')
    """
    if preset := preset_for(kind, topic):
        return f'preset = "{preset}"'
    return f'kinds = ["{kind}"], prefixes = ["{topic}"]'


def _verdicts(rules: Iterable[RuleEntry]) -> dict[tuple[str, str], dict[bytes, bool]]:
    """Role and kind -> prefix -> verdict; of rules with the same prefix, one that denies wins."""
    found: dict[tuple[str, str], dict[bytes, bool]] = {}
    for rule in rules:
        kinds, prefixes = (("call",), PRESETS[rule.preset]) if rule.preset else (rule.kinds, rule.prefixes)
        for role in rule.roles:
            for kind in kinds:
                verdicts = found.setdefault((role, kind), {})
                for prefix in prefixes:
                    name = _encoded(prefix)
                    verdicts[name] = verdicts.get(name, True) and rule.allow
    return found


def _names(roles: int) -> list[str]:
    return [name for name, bit in ROLE_NAMES.items() if roles & bit]


def _encoded(topic: str) -> bytes:
    return topic.encode("utf-8", "surrogateescape")
