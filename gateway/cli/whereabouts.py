"""Which gateway a command is about: its configuration file, or its state directory alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from broker.cli.exits import UsageError
from broker.obstacles import obstacle
from gateway.identity.store import FILE
from gateway.settings import GatewaySettings, load

Config = Annotated[
    str | None, typer.Option("--config", "-c", metavar="FILE", help="The gateway's configuration (TOML).")
]
Statedir = Annotated[
    str | None,
    typer.Option(
        "--statedir",
        metavar="DIR",
        help="Its state directory, instead of --config. Default: as the gateway itself finds it.",
    ),
]


def settings_of(config: str | None, statedir: str | None) -> GatewaySettings:
    """The settings that a command works with.

    Raises:
        ConfigError: the file is wrong.
        UsageError: both are given.
    """
    if config is not None and statedir is not None:
        raise UsageError("--config and --statedir: expected one of them; the file names its state directory")
    if config is not None:
        return load(config)
    settings = GatewaySettings.defaults()
    if statedir is None:
        return settings
    return replace(settings, gateway=replace(settings.gateway, statedir=statedir))


def store_of(settings: GatewaySettings) -> Path | None:
    """The file of what a gateway keeps in its state directory; None where no gateway has run.

    Raises:
        ConfigError: it cannot be told, as in a directory of another user.
    """
    path = Path(settings.gateway.statedir, FILE)
    try:
        path.stat()  # `exists` takes for absent what may not be looked at
    except FileNotFoundError:
        return None
    except OSError as error:
        raise obstacle(f"{path}: {error.strerror}", error) from error
    return path
