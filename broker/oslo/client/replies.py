"""The calls that this process works on, and its latest replies: a client asks for a reply again that may be lost.

A call that comes again is not run again. One that is worked on is answered over the new connection when it is done; one
that was answered lately is answered once more; of one whose answer is not kept any more the client is told so.
"""

# compiled: mypyc

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from broker.oslo.client.inbox import ReceivedMessage
from broker.oslo.frames import HEAD_BYTES, Envelope, Kind, encode, refusal
from broker.oslo.names import Reason
from broker.oslo.reactor.socket import Frames

ANSWERS_MAX: Final = 1024
ANSWERS_BYTES: Final = 4 << 20
"""Bodies of answers that are kept; one is, however large."""
BEGUN_MAX: Final = 10_000
BEGUN_BYTES: Final = 64 << 20
"""Calls that are worked on, as many as an inbox holds: of more than that the oldest are not known again."""
_KEY_AT: Final = 16
"""In an envelope: stamp and id. Who asks again has to have the credentials of who asked."""


class ReplyCache:
    """Which calls are worked on, and the replies that are kept. For the thread of the sockets.

    Args:
        send: sends frames to the node's proxy; False: there is no room.
    """

    def __init__(self, send: Callable[[Frames], bool]) -> None:
        self._send = send
        self._begun: OrderedDict[bytes, ReceivedMessage] = OrderedDict()
        self._begun_bytes = 0
        self._answers: OrderedDict[bytes, tuple[bytes, bytes, Envelope]] = OrderedDict()
        self._bytes = 0

    def begin(self, call: ReceivedMessage) -> None:
        """The call came and was taken in."""
        key = call.head[_KEY_AT:HEAD_BYTES]
        self._end(key)  # its client took an id of a call that nobody has answered
        self._begun[key] = call
        self._begun_bytes += call.size
        while len(self._begun) > 1 and (len(self._begun) > BEGUN_MAX or self._begun_bytes > BEGUN_BYTES):
            self._begun_bytes -= self._begun.popitem(last=False)[1].size

    def send(self, kind: int, call: ReceivedMessage, body: bytes) -> bool:
        """Answer the call, or say that it is worked on (``Kind.BEAT``); False: there is no room."""
        head = encode(kind, id=call.envelope.id)
        if kind == Kind.REPLY:
            self._keep(call, head, body)
        return self._send((head, call.route, body))

    def find_answered(self, number: bytes) -> Envelope | None:
        """The call of that id, when it was answered lately."""
        return next((each[2] for key, each in self._answers.items() if key.endswith(number)), None)

    def _keep(self, call: ReceivedMessage, head: bytes, body: bytes) -> None:
        key = call.head[_KEY_AT:HEAD_BYTES]
        self._end(key)
        former = self._answers.pop(key, None)
        if former is not None:
            self._bytes -= len(former[1])
        self._answers[key] = (head, body, call.envelope)
        self._bytes += len(body)
        while len(self._answers) > 1 and (len(self._answers) > ANSWERS_MAX or self._bytes > ANSWERS_BYTES):
            self._bytes -= len(self._answers.popitem(last=False)[1][1])

    def _end(self, key: bytes) -> None:
        begun = self._begun.pop(key, None)
        if begun is not None:
            self._begun_bytes -= begun.size

    def answer_again(self, head: bytes, envelope: Envelope, route: bytes) -> bool:
        """A call came again that its listener has had; ``route``: where its client is now. False: there is no room."""
        key = head[_KEY_AT:HEAD_BYTES]
        call = self._begun.get(key)
        if call is not None:
            call.route = route
            return True
        answer = self._answers.get(key)
        if answer is None:
            return self._send((refusal(envelope.id, Reason.ANSWERED), route, b""))
        return self._send((answer[0], route, answer[1]))
