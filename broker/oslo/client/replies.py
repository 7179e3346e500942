"""The calls that this process has, and those that it answered lately: what a client asks for again when it may be lost.

A call that comes again is not run again. One that is worked on is answered over the new connection when it is done; one
that was answered lately is answered once more; of one whose answer is not kept any more the client is told so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from broker.oslo.client.inbox import ReceivedMessage
from broker.oslo.frames import Envelope, Kind, encode, refusal
from broker.oslo.names import Reason
from broker.oslo.reactor.pipe import Frames

ANSWERS_MAX: Final = 1024
ANSWERS_BYTES: Final = 4 << 20
"""Bodies of answers that are kept; one is, however large."""
_KEY: Final = slice(16, 40)
"""Of an envelope: stamp and id. Who asks again has to have the credentials of who asked."""


class Replies:
    """For the thread of the sockets.

    Args:
        send: sends frames to the node's proxy; False: there is no room.
    """

    def __init__(self, send: Callable[[Frames], bool]) -> None:
        self._send = send
        self._begun: WeakValueDictionary[bytes, ReceivedMessage] = WeakValueDictionary()
        """Calls that the application has, or will take; whoever drops one without an answer has it forgotten here."""
        self._answers: OrderedDict[bytes, tuple[bytes, bytes, Envelope]] = OrderedDict()
        self._bytes = 0

    def begin(self, call: ReceivedMessage) -> None:
        """The call came and was taken in."""
        self._begun[call.head[_KEY]] = call

    def send(self, kind: int, call: ReceivedMessage, body: bytes) -> bool:
        """Answer the call, or say that it is worked on (``Kind.BEAT``); False: there is no room."""
        head = encode(kind, id=call.envelope.id)
        if kind == Kind.REPLY:
            self._keep(call, head, body)
        return self._send((head, call.route, body))

    def answered(self, number: bytes) -> Envelope | None:
        """The call of that id, when it was answered lately."""
        return next((each[2] for key, each in self._answers.items() if key.endswith(number)), None)

    def _keep(self, call: ReceivedMessage, head: bytes, body: bytes) -> None:
        key = call.head[_KEY]
        self._begun.pop(key, None)
        self._answers[key] = (head, body, call.envelope)
        self._bytes += len(body)
        while len(self._answers) > 1 and (len(self._answers) > ANSWERS_MAX or self._bytes > ANSWERS_BYTES):
            self._bytes -= len(self._answers.popitem(last=False)[1][1])

    def again(self, head: bytes, envelope: Envelope, route: bytes) -> bool:
        """A call came again that its listener has had; ``route``: where its client is now. False: there is no room."""
        key = head[_KEY]
        call = self._begun.get(key)
        if call is not None:
            call.route = route
            return True
        answer = self._answers.get(key)
        if answer is None:
            return self._send((refusal(envelope.id, Reason.ANSWERED), route, b""))
        return self._send((answer[0], route, answer[1]))
