"""One handler for each kind of request; each runs as a task of the service until it has answered."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.client import Request
from broker.client.bridge import EVERYBODY, OTHERWISE, TRUSTED, Methods
from broker.errors import RpcError
from broker.identity import Credentials
from broker.oslo.contract import OsloFailure
from broker.oslo.service import asking, policy
from broker.oslo.service.config import CALL, CAST, FluxBridgeConfig
from broker.oslo.service.topics import (
    Send,
    StatusPayload,
    WhichTopics,
    asked,
    body_of,
    error_of,
    result_of,
)
from broker.wire.payload import read_request

if TYPE_CHECKING:
    from broker.oslo.service.sending import RequestSender

FIGURES_S: Final = 0.3
"""How long rooms may take that are asked for figures: whoever asks us waits a little longer."""
TOPICS_MAX: Final = 1000
"""Topics in one answer."""


class Handlers:
    """What ``oslo.*`` does.

    Args:
        config: rules and times.
        sender: into the pipelines.
        figures: what the bridge itself counts.
    """

    def __init__(
        self, config: FluxBridgeConfig, sender: RequestSender, figures: Callable[[], dict[str, Any]]
    ) -> None:
        self._config = config
        self._sender = sender
        self._figures = figures
        self._asking: dict[str, asyncio.Task[Any]] = {}

    def table(self) -> Methods:
        """What is called by which name."""
        return {
            OTHERWISE: (self.send, EVERYBODY),  # oslo.EXCHANGE.TOPIC.METHOD: ``policy`` decides who may
            "send": (self.send, EVERYBODY),
            "status": (self.status, TRUSTED),
            "calls": (self.calls, TRUSTED),
            "topics.list": (self.topics_list, EVERYBODY),
        }

    async def send(self, request: Request) -> dict[str, Any]:
        """``oslo.EXCHANGE.TOPIC.METHOD`` and ``oslo.send``."""
        what = asked(request.topic, request.payload)
        who = Credentials(request.userid, request.rolemask)
        send = what.send
        policy.check(self._config.rules, who, what.address, what.method, send.mode, ctxt=bool(send.ctxt))
        body = body_of(what, who)
        try:
            if send.mode == CALL:
                timeout_s = self._timeout_s(send)
                reply = await self._sender.call(
                    what.address, body, timeout_s=timeout_s, mandatory=send.mandatory
                )
                return {"result": result_of(reply)}
            if send.mode == CAST:
                await self._sender.cast(what.address, body, mandatory=send.mandatory)
            else:
                await self._sender.fanout(what.address, body)
        except OsloFailure as error:
            raise error_of(error, what) from error
        return {"sent": True}

    def _timeout_s(self, send: Send) -> float:
        """How long to wait.

        Raises:
            RpcError: EINVAL, longer than is allowed.
        """
        if send.timeout is None:
            return self._config.call_timeout_s
        if send.timeout > self._config.call_timeout_max_s:
            text = f"timeout: saw {send.timeout:g} s, expected {self._config.call_timeout_max_s:g} s at most"
            raise RpcError(errno.EINVAL, text)
        return send.timeout

    async def status(self, request: Request) -> dict[str, Any]:
        """``oslo.status``."""
        read_request(StatusPayload, request.payload)
        rooms = await self._once("status", lambda: asking.statuses(self._config.client.ipc_dir))
        return {"rooms": rooms, "bridge": self._figures()}

    async def calls(self, request: Request) -> dict[str, Any]:
        """``oslo.calls``."""
        read_request(StatusPayload, request.payload)
        rooms = await self._once(
            "calls", lambda: asking.statuses(self._config.client.ipc_dir, FIGURES_S, figures=True)
        )
        return {
            "figures": {
                f"{room} {name}": told
                for room, said in rooms.items()
                for name, told in ((said or {}).get("figures") or {}).items()
            },
            "silent": [room for room, said in rooms.items() if said is None],
        }

    async def _once(self, name: str, ask: Callable[[], Any]) -> Any:
        """Ask in a thread; who asks meanwhile is told the same: however many they are, it is one thread."""
        under_way = self._asking.get(name)
        if under_way is None:
            under_way = asyncio.get_running_loop().create_task(asyncio.to_thread(ask), name=f"oslo {name}")
            self._asking[name] = under_way
            under_way.add_done_callback(lambda _task: self._asking.pop(name))
        return await asyncio.shield(under_way)

    async def topics_list(self, request: Request) -> dict[str, Any]:
        """``oslo.topics.list``."""
        which = read_request(WhichTopics, request.payload)
        who = Credentials(request.userid, request.rolemask)
        found = await self._once("topics", lambda: asking.listened(self._config.client))
        if found is None:
            raise RpcError(errno.EHOSTUNREACH, "no directory of this node has answered")
        seen = [
            row
            for row in found
            if which.exchange in ("", row["exchange"])
            and policy.may_see(self._config.rules, who, row["exchange"], row["topic"])
        ]
        return {"topics": seen[:TOPICS_MAX], "more": len(seen) > TOPICS_MAX}
