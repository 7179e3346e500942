"""From a TOML file to `GatewaySettings`, or to one `ConfigError` that lists every problem, a line each:

    FILE:LINE: section.key: what was seen, what was expected

The machinery is the broker's (`broker.settings.reading`); files that settings name are taken from the directory of
the file that names them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from broker.secret import SecretPlace, revealed
from broker.settings.reading import assign, check_by, loads_as, text_of, with_paths
from broker.settings.transport_options import rooted_options
from broker.settings.values import check_key
from gateway.settings.rules import problems
from gateway.settings.schema import GatewaySettings


def load(path: str | os.PathLike[str]) -> GatewaySettings:
    """Read a configuration file; relative paths in it are taken from its directory.

    Raises:
        ConfigError: the file cannot be read, or says what it must not.
    """
    return _rooted(loads(text_of(path), str(Path(path))), str(Path(path).absolute().parent))


def loads(text: str, name: str = "<text>") -> GatewaySettings:
    """Read a configuration from a text; ``name`` stands for the file in errors.

    Raises:
        ConfigError: the text is not TOML, or says what it must not.
    """
    return loads_as(GatewaySettings, problems, text, name)


def check(settings: GatewaySettings) -> GatewaySettings:
    """Apply the rules between fields to settings that a program has put together, and return them.

    Raises:
        ConfigError: a line for each rule that is broken, without a file and line number.
    """
    return check_by(problems, settings)


def apply(settings: GatewaySettings, assignments: Sequence[str]) -> GatewaySettings:
    """``settings`` with each ``section.key=value`` of a command line applied: see ``assign``.

    Raises:
        ConfigError: an assignment is wrong, or contradicts another setting.
    """
    return check(assign(settings, assignments, _rooted))


def renewed(settings: GatewaySettings, read: GatewaySettings) -> GatewaySettings:
    """``settings`` with what of ``read`` counts without a restart: users, rules, and which roles web users may have."""
    replace = msgspec.structs.replace
    access = replace(
        settings.access, allow_owner=read.access.allow_owner, allow_admin=read.access.allow_admin
    )
    return replace(settings, users=read.users, rules=read.rules, access=access)


def unrenewed(settings: GatewaySettings, read: GatewaySettings) -> list[str]:
    """What differs in ``read`` and counts after a restart only: ``section.key``, or the name of a list."""
    old, new = (
        msgspec.to_builtins(each, enc_hook=revealed)
        for each in (renewed(settings, read), renewed(read, read))
    )
    differ = []
    for name in old:
        if isinstance(old[name], dict):
            differ += [f"{name}.{key}" for key in old[name] if old[name][key] != new[name][key]]
        elif old[name] != new[name]:
            differ.append(name)
    return differ


def _rooted(settings: GatewaySettings, folder: str) -> GatewaySettings:
    replace = msgspec.structs.replace

    section = with_paths(settings.gateway, folder, "statedir", "upstream_cert", "redis_password_file")
    if section.upstream_key and any(check_key(("upstream_key",), section.upstream_key)):
        section = with_paths(section, folder, "upstream_key")  # the path of a certificate, where it is no key
    options = rooted_options(section.upstream_options, [section.upstream or ""], folder)

    def place(given: SecretPlace | None) -> SecretPlace | None:
        text = None if given is None else given.reveal()
        return given if text is None or "://" in text else SecretPlace(os.path.join(folder, text))

    keys = tuple(found for key in settings.jwt.keys if (found := place(key)))
    return replace(
        settings,
        gateway=replace(section, upstream_options=options),
        listen=tuple(with_paths(entry, folder, "cert", "key", "client_ca") for entry in settings.listen),
        tokens=with_paths(settings.tokens, folder, "file"),
        jwt=replace(settings.jwt, keys=keys),
        access=replace(
            settings.access,
            client_crls=tuple(os.path.join(folder, name) for name in settings.access.client_crls),
        ),
        oidc=tuple(with_paths(entry, folder, "client_secret_file") for entry in settings.oidc),
        history=replace(settings.history, warehouse=place(settings.history.warehouse)),
    )
