"""Who may call what: the table that the product is held against (RFC 12, "Service Security Policy").

``BUILT_IN`` is the table of the broker's own services, ``COMMON`` what every one of them answers, ``WINGS`` the methods
of NFP and oslo.messaging on the broker, ``GATEWAY`` those of a gateway. A mask names the roles that may call besides
the owner; a method that is in the product and not in here fails ``tests/story/test_security_matrix.py``.
"""

from typing import NamedTuple

from broker.identity import Role
from tests.unit.services.test_registry import ALL, MASKS, OWNERS, USER

BUILT_IN = MASKS
ADMIN = int(Role.ADMIN)
USERS_OR_ADMINS = USER | ADMIN
COMMON = {
    "ping": USER,
    "stats-get": USER,
    "stats-clear": OWNERS,
    "rusage": USER,
    "debug": OWNERS,
    "disconnect": ALL,
    "cancel": ALL,
}
UNKNOWN = "no-such-method"
WINGS = {
    "nfp": dict.fromkeys(
        (
            "run", "jobs.list", "jobs.show", "jobs.count", "jobs.result", "jobs.attach", "jobs.cancel", "jobs.answer",
            "services.list", "workers.list",
        ),
        USERS_OR_ADMINS,
    ) | {"calls": ADMIN},
    "oslo": {"send": USERS_OR_ADMINS, "topics.list": USERS_OR_ADMINS, "status": ADMIN, "calls": ADMIN},
}  # fmt: skip
GATEWAY = {
    "session": USERS_OR_ADMINS,
    "rules": USERS_OR_ADMINS,
    "sessions": ADMIN,
    "stats": ADMIN,
    "series": ADMIN,
    "calls": USERS_OR_ADMINS,
    "ranks": USERS_OR_ADMINS,
    "latest": USERS_OR_ADMINS,
    "presence": USERS_OR_ADMINS,
    "denied": ADMIN,
    "end": ADMIN,
    "logins": USERS_OR_ADMINS,
    "logout": USERS_OR_ADMINS,
    "reload": OWNERS,
    "drain": OWNERS,
}
OF_THE_LINK = frozenset(
    ("event.subscribe", "event.unsubscribe", "event.publish", "service.add", "service.remove")
)
"""A gateway checks the right to the topic or name inside of these, and lets every role ask."""
SILENT = (".disconnect",)
"""Ends of topics that are not answered when they are allowed (RFC 6); nor is a cancel that names a stream."""


class Row(NamedTuple):
    """One topic, and the roles that may call it besides the owner."""

    topic: str
    mask: int

    def allows(self, roles: int) -> bool:
        return bool(roles & (self.mask | Role.OWNER))

    @property
    def silent(self) -> bool:
        """Whether a call that is allowed is not answered."""
        return self.topic.endswith(SILENT)


def mask_of(service: str, word: str) -> int:
    """The mask of a method of a built-in service; one that does not exist is refused to everybody, by ENOSYS."""
    own = BUILT_IN[service].get(word)
    if own is not None:
        return own
    if word in COMMON:
        return COMMON[word]
    return OWNERS if service == "rexec" else ALL  # which is off, and says so to owners only


def built_in_rows() -> list[Row]:
    """Every method of every built-in service, the common ones and one that does not exist included."""
    rows = []
    for service, words in BUILT_IN.items():
        rows += [Row(f"{service}.{word}", mask_of(service, word)) for word in {**words, **COMMON, UNKNOWN: 0}]
    return rows


def wing_rows() -> list[Row]:
    """Every method of NFP and oslo.messaging."""
    return [
        Row(f"{service}.{word}", mask) for service, words in WINGS.items() for word, mask in words.items()
    ]


def gateway_rows() -> list[Row]:
    """Every method of a gateway itself."""
    return [Row(f"gateway.{word}", mask) for word, mask in GATEWAY.items()]
