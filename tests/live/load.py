"""Numbered traffic: every party counts, so that what is lost, repeated or out of order is seen where it happens.

Each party is a thread with a connection of its own. A fault is an exception there, raised again by ``finish``.
"""

import threading
import time
from struct import Struct

from broker.wire.message import EVENT, NODEID_ANY, REQUEST, RESPONSE, Message, event, request, response
from tests.live.speaker import Closed, Speaker, provide, subscribe

_NUMBERED = Struct(">II")
"""(who, number): the payload of everything here."""


def numbered(who: int, number: int, pad: int = 0) -> bytes:
    return _NUMBERED.pack(who, number) + bytes(pad)


def numbers(message: Message) -> tuple[int, int]:
    who, number = _NUMBERED.unpack_from(message.payload or b"")
    return who, number


class Party(threading.Thread):
    """One connection and what it does; ``stop`` ends one that would go on for ever."""

    def __init__(self, uri: str, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.speaker = Speaker(uri)
        self.failure: BaseException | None = None
        self.stopping = False

    def run(self) -> None:
        try:
            self.act()
        except BaseException as error:
            self.failure = error
        finally:
            self.speaker.close()

    def act(self) -> None:
        raise AssertionError("a party does something")

    def messages(self) -> list[Message]:
        """What one read brought; empty after a while without any, and when told to stop."""
        speaker = self.speaker
        if not speaker.seen:
            try:
                speaker.receive(0.1)
            except TimeoutError:
                return []
        out, speaker.seen = speaker.seen, []
        return out

    def stop(self) -> None:
        self.stopping = True

    def finish(self, timeout: float = 50.0) -> None:
        """Wait for the end and raise what went wrong."""
        self.join(timeout)
        assert not self.is_alive(), f"{self.name} is not done after {timeout} s"
        if self.failure is not None:
            raise AssertionError(f"{self.name}: {self.failure!r}") from self.failure


class Provider(Party):
    """Answers every request of ``service`` with its own payload; each caller's numbers must rise by one."""

    def __init__(self, uri: str, service: str) -> None:
        super().__init__(uri, f"provider of {service}")
        provide(self.speaker, service)
        self.next: dict[int, int] = {}
        self.answered = 0
        self.start()

    def act(self) -> None:
        while not self.stopping:
            asked = [message for message in self.messages() if message.type == REQUEST]
            asked = [message for message in asked if not (message.topic or "").endswith(".disconnect")]
            for message in asked:
                who, number = numbers(message)
                assert number == self.next.get(who, 0), (
                    f"caller {who}: {number} came, expected {self.next.get(who, 0)}"
                )
                self.next[who] = number + 1
            if asked:
                self.answered += len(asked)
                self.speaker.tell(*(response(message, message.payload) for message in asked))


class Caller(Party):
    """``count`` numbered calls (0: until stopped), ``window`` of them open; answers come once each and in order.

    ``rest_s``: seconds between two rounds, so that a long story leaves the machine to others.
    """

    def __init__(
        self,
        uri: str,
        service: str,
        who: int,
        count: int,
        window: int = 32,
        nodeid: int = NODEID_ANY,
        pad: int = 0,
        rest_s: float = 0.0,
    ) -> None:
        super().__init__(uri, f"caller {who} of {service}")
        self.topic = f"{service}.echo"
        self.who, self.count, self.window, self.nodeid, self.pad = who, count, window, nodeid, pad
        self.rest_s = rest_s
        self.sent = 0
        self.done = 0
        self.start()

    def act(self) -> None:
        last = time.monotonic()
        while self.done < self.sent or not self.enough():
            self._call()
            time.sleep(self.rest_s)
            for message in self.messages():
                assert message.type == RESPONSE
                assert message.errnum == 0, (
                    f"call {message.matchtag}: errnum {message.errnum} {message.payload!r}"
                )
                assert message.matchtag == self.done + 1, (
                    f"answer {message.matchtag}, expected {self.done + 1}"
                )
                assert numbers(message) == (self.who, self.done)
                self.done += 1
                last = time.monotonic()
            assert time.monotonic() - last < 30, f"no answer for 30 s, {self.sent - self.done} calls are open"
        assert self.speaker.ping() == 0
        assert self.speaker.seen == [], "answered more than once"

    def enough(self) -> bool:
        return self.stopping or (self.count > 0 and self.sent >= self.count)

    def _call(self) -> None:
        calls = []
        while self.sent - self.done < self.window and not self.enough():
            payload = numbered(self.who, self.sent, self.pad)
            self.sent += 1
            calls.append(request(self.topic, payload, nodeid=self.nodeid, matchtag=self.sent))
        self.speaker.tell(*calls)


class Publisher(Party):
    """``count`` numbered events (0: until stopped), a few at a time."""

    def __init__(
        self, uri: str, topic: str, who: int, count: int, burst: int = 20, pause_s: float = 0.005
    ) -> None:
        super().__init__(uri, f"publisher {who}")
        self.topic, self.who, self.count, self.burst, self.pause_s = topic, who, count, burst, pause_s
        self.sent = 0
        self.start()

    def act(self) -> None:
        while not self.stopping and (self.count == 0 or self.sent < self.count):
            upto = self.sent + self.burst if self.count == 0 else min(self.count, self.sent + self.burst)
            self.speaker.tell(*(event(self.topic, numbered(self.who, n)) for n in range(self.sent, upto)))
            self.sent = upto
            time.sleep(self.pause_s)
        assert self.speaker.ping() == 0  # all of it was read


class Subscriber(Party):
    """Everything under ``prefix``: instance numbers rise, by one when ``prefix`` is "", and so do each publisher's."""

    def __init__(self, uri: str, prefix: str, name: str = "") -> None:
        super().__init__(uri, name or f"subscriber to {prefix!r}")
        self.prefix = prefix
        self.next: dict[int, int] = {}
        self.sequence = 0
        self.received = 0
        subscribe(self.speaker, prefix)
        self.start()

    def act(self) -> None:
        while not self.stopping:
            for message in self.messages():
                if message.type == EVENT:
                    self._note(message)

    def _note(self, message: Message) -> None:
        assert message.sequence > self.sequence, f"sequence {message.sequence} after {self.sequence}"
        if self.prefix == "" and self.sequence:
            assert message.sequence == self.sequence + 1, f"sequence {message.sequence} after {self.sequence}"
        self.sequence = message.sequence
        if message.topic != "heartbeat.pulse":
            who, number = numbers(message)
            expected = self.next.get(who, 0)
            assert number == expected, f"publisher {who}: {number} came, expected {expected}"
            self.next[who] = number + 1
            self.received += 1


def stop_all(parties: list[Party]) -> None:
    """Stop them, one after the other: callers stand before the providers they need. The first fault is raised."""
    for party in parties:
        party.stop()
        party.finish()


def is_closed(speaker: Speaker) -> bool:
    try:
        speaker.receive(0.05)
    except TimeoutError:
        return False
    except Closed:
        return True
    return False
