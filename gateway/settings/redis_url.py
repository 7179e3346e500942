"""Clients of redis-py: made by whoever uses one, and by whoever checks the URL of one, in the same way."""

from __future__ import annotations

import importlib
from typing import Any

from broker.errors import ConfigError
from broker.extras import install
from broker.secret import SecretUrl


def client_of(url: SecretUrl, **options: Any) -> Any:
    """A client, which connects when it is used.

    Raises:
        ConfigError: redis-py is missing, or the URL is none; the text has nothing secret of it.
    """
    try:
        asyncio_redis = importlib.import_module("redis.asyncio")
    except ImportError as error:
        text = f"gateway.redis is set, and redis-py cannot be imported ({error.name}): {install('redis')}"
        raise ConfigError(text) from None
    try:
        client = asyncio_redis.from_url(url.reveal(), **options)
        client.connection_pool.make_connection()  # connects nowhere, but looks at the options
        return client
    except (ValueError, TypeError) as error:
        if str(error).startswith("Port"):  # it quotes what may be a part of a password
            error = ValueError("a port that is none: special characters in a password are written as %XX")
        raise ConfigError(f"gateway.redis: saw {str(url)!r}: {url.masked_in(str(error))}") from None


def fault_of(url: SecretUrl) -> str:
    """What is wrong with the URL of a Redis server; "" when nothing is, or redis-py is not here to tell."""
    try:
        importlib.import_module("redis")
        client_of(url)
    except ImportError:
        return ""
    except ConfigError as error:
        return str(error).removeprefix("gateway.redis: ")
    return ""
