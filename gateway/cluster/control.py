"""How verbs talk to the supervisor: one JSON object a line over a UNIX socket, one answer each.

    {"do": "kill", "ranks": [3], "stay": false}  ->  {"ok": true}
    {"do": "kill", "ranks": [9]}                 ->  {"ok": false, "kind": "config", "error": "rank: saw 9, ..."}

The socket is in a private folder: who can open it is the user whose cluster it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from broker import trust
from broker.errors import ConfigError, HeadgateError
from broker.sockets import peer_credentials

log = logging.getLogger("headgate")

SOCKET: Final = "control"
LINE_BYTES: Final = 1 << 20
"""Longest line of either side: a status of 4096 members fits."""

LOOK_S: Final = 5.0
"""How long a look whether somebody listens may take."""
_KINDS: Final[dict[str, type[Exception]]] = {"config": ConfigError, "timeout": TimeoutError}
"""Kinds of errors in answers; any other is a HeadgateError."""

Do = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""What a supervisor does with a line; what it raises is the answer."""


class NotUp(HeadgateError):
    """No supervisor listens: the cluster is not up."""

    fault = "operator"


# ---------------------------------------------------------------- the verbs' side


@contextlib.contextmanager
def connect(path: Path, seconds: float) -> Iterator[socket.socket]:
    """A connection to the supervisor, each of whose answers may take ``seconds``.

    Raises:
        NotUp: nobody listens.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(seconds)
        try:
            trust.connect(sock, str(path))
        except TimeoutError:
            raise TimeoutError(f"the supervisor does not answer within {seconds:g} s") from None
        except OSError as error:
            raise NotUp(f"the cluster is not up: {path}: {error.strerror}") from None
        yield sock


def listens(path: Path) -> bool:
    """Whether a supervisor is there; that of a cluster which is removed meanwhile is not."""
    try:
        with connect(path, LOOK_S):
            return True
    except (NotUp, TimeoutError):
        return False


def ask(sock: socket.socket, **words: Any) -> dict[str, Any]:
    """Send one line and return the answer.

    Raises:
        NotUp: the supervisor left before it answered. TimeoutError: it says nothing.
        ConfigError, HeadgateError: it says no.
    """
    try:
        sock.sendall(msgspec.json.encode(words) + b"\n")
        with sock.makefile("rb") as lines:
            line = lines.readline()
    except TimeoutError:
        raise TimeoutError(f"the supervisor says nothing within {sock.gettimeout():g} s") from None
    except OSError as error:
        raise NotUp(f"the supervisor left before it answered: {error}") from None
    if not line.endswith(b"\n"):
        raise NotUp("the supervisor left before it answered")
    return checked(line)


def checked(line: bytes) -> dict[str, Any]:
    """An answer of the supervisor.

    Raises:
        ConfigError, HeadgateError, TimeoutError: it says no.
    """
    answer = msgspec.json.decode(line, type=dict[str, Any])
    if not answer["ok"]:
        raise _KINDS.get(answer["kind"], HeadgateError)(answer["error"])
    return answer


def peer_pid(sock: socket.socket) -> int:
    """Who listens at the other end of a UNIX socket, or has connected to it: the kernel says so (SO_PEERCRED)."""
    return peer_credentials(sock)[0]


# ---------------------------------------------------------------- the supervisor's side


async def serve(path: Path, do: Do) -> asyncio.Server:
    """Listen on ``path``, in a folder that nobody else may enter, and have ``do`` answer each line."""

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(msgspec.json.encode(await _answer(do, line)) + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            return  # it left, or its line was too long
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    return await asyncio.start_unix_server(peer, path, limit=LINE_BYTES)


async def _answer(do: Do, line: bytes) -> dict[str, Any]:
    try:
        return {"ok": True, **await do(msgspec.json.decode(line, type=dict[str, Any]))}
    except msgspec.DecodeError as error:
        return refusal(ConfigError(f"not a JSON object: {error}"))
    except HeadgateError as error:
        return refusal(error)
    except Exception as error:
        log.exception("control: %r", line[:200])
        return refusal(HeadgateError(repr(error)))


def refusal(error: Exception) -> dict[str, Any]:
    """The answer that says no, see ``checked``."""
    kinds = [kind for kind, of in _KINDS.items() if isinstance(error, of)]
    return {"ok": False, "kind": kinds[0] if kinds else "failed", "error": str(error)}
