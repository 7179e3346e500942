"""The three texts of RFC 3, and the form that deployed software made of the newest: a property of a link.

::

    cmb1             first CMB1: flag 0x04 marks JSON, keepalives, ZeroMQ only
    cmb1rev          CMB1 revision: noresponse, private, streaming; keepalives, ZeroMQ only
    flux1            Flux v1 as deployed flux-core writes it: the default, and every Message inside
    flux1, strict    Flux v1 as its text says

Bytes cannot tell them apart, so a setting of each listener or dialer does. A link in the default form never
comes here: it uses ``from_parts``, ``Message.parts`` and ``Message.framed`` directly (see
``Dialect.native``).

A text adds a class to ``_DIALECTS``; nothing else in the house names one. ``contract`` says what such a class does
and has the rules that all texts share.
"""

from __future__ import annotations

from typing import Final

from broker.errors import ConfigError
from broker.wire.dialects.cmb1 import Cmb1
from broker.wire.dialects.cmb1rev import Cmb1Rev
from broker.wire.dialects.contract import Dialect
from broker.wire.dialects.flux1 import Flux1, Flux1Text

_DIALECTS: Final[dict[tuple[str, bool], Dialect]] = {
    ("flux1", False): Flux1(),
    ("flux1", True): Flux1Text(),
    ("cmb1rev", False): Cmb1Rev(),
    ("cmb1", False): Cmb1(),
}
NAMES: Final = tuple(dict.fromkeys(name for name, _strict in _DIALECTS))
"""What a setting may say."""


def dialect(name: str, strict: bool = False) -> Dialect:
    """The dialect called ``name``; ``strict`` asks for the form of its text where deployed software differs.

    Raises:
        ConfigError: no such dialect, or one that has a single form.
    """
    found = _DIALECTS.get((name, strict))
    if found is None:
        known = f"{name!r} has one form only" if name in NAMES else f"known: {', '.join(NAMES)}"
        raise ConfigError(f"no dialect {name!r}{' with strict_rfc3' if strict else ''}; {known}")
    return found


__all__ = ["NAMES", "Cmb1", "Cmb1Rev", "Dialect", "Flux1", "Flux1Text", "dialect"]
