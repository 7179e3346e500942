"""C1 to C6: requests and their answers. C12's "at most once" and order are the same rules for what has no answer."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from tests.proof.checker.entries import ANY, LATE_S, Call, Conn, Held, Line
from tests.proof.checker.places import Way
from tests.proof.checker.story import Story
from tests.proof.checker.trouble import FOREVER, Harmless, proxy_restarted
from tests.proof.checker.verdict import Verdict

DOCUMENTED: Final = frozenset(
    {errno.EHOSTUNREACH, errno.ENOSYS, errno.ECONNRESET, errno.ETIMEDOUT, errno.EAGAIN}
)
"""What may be answered when the other end cannot be reached, is not there, or cannot take more."""
LEAVING: Final = frozenset({errno.ESHUTDOWN})
"""What a gateway that leaves says beside these."""

HANGS_S: Final = 30.0
"""A call is answered well within this, also when a peer has to be given up for its silence (25 s)."""
ARRIVES_S: Final = 10.0
"""How long something that nobody answers may take on an untouched way."""
TOLD_S: Final = 1.0
"""How long everybody needs at most to be told of a new listener: fan-outs go to those that are known."""


def judge(story: Story, verdict: Verdict) -> None:
    """Hold every call against C1 to C6, every cast, fan-out and notification against C2, C3 and C12."""
    for call in story.calls.values():
        verdict.messages[f"{call.kind}s {call.conn.kind}"] += 1
        verdict.messages["answers"] += len(call.answers)
        _once(call, verdict)
        if call.kind == "call" and not call.noresponse:
            _one_end(story, call, verdict)
            _responses(call, verdict)
        _Case(story, call).judge(verdict)
    _order(story, verdict)


# ----------------------------------------------------------------- whatever happens


def _once(call: Call, verdict: Verdict) -> None:
    """C2. A fan-out is for every server, once each."""
    servers = {conn.name for _, conn in call.serves}
    if len(call.serves) > (len(servers) if call.kind == "fanout" else 1):
        where = ", ".join(f"{conn.name} at {line['t']:.3f}" for line, conn in call.serves)
        rule = "C2" if call.kind == "call" else "C12"
        verdict.add(
            rule, f"{call.id} to {call.to} was served {len(call.serves)} times: {where}", call.t, call.id
        )


def _one_end(story: Story, call: Call, verdict: Verdict) -> None:
    """C1. A party that was killed, and only that, leaves calls without end."""
    conn = call.conn
    if len(call.ends) > 1:
        ends = ", ".join(_end_text(line) for line in call.ends)
        verdict.add("C1", f"{call.id} to {call.to} has {len(call.ends)} ends: {ends}", call.t, call.id)
    elif not call.ends and not (conn.end < FOREVER and not conn.said):
        verdict.add("C1", f"{call.id} to {call.to} has no end", call.t, call.id)
    elif call.ends and call.ends[0].get("why") == "lost" and conn.end > call.ends[0]["t"] + LATE_S:
        verdict.add("C1", f"{call.id} was given up as lost, and {conn.name} went on", call.t, call.id)
    elif call.ends and call.ends[0].get("why") == "lost" and hung(conn, call.t):
        verdict.add("C1", f"{call.id} to {call.to} hung until {conn.name} left", call.t, call.id)


def hung(conn: Conn, since: float) -> bool:
    """Whether something was open for long when its party left of its own will: nobody else would have ended it."""
    return conn.why == "closed" and conn.end - since > HANGS_S


def _end_text(line: Line) -> str:
    return f"errnum {line['errnum']}" if line["ev"] == "answer" else f"given up ({line['why']})"


def _responses(call: Call, verdict: Verdict) -> None:
    """C4."""
    numbers = [line["k"] for line in call.answers if line.get("k") is not None]
    if numbers != list(range(len(numbers))):
        verdict.add("C4", f"responses of {call.id} came as {numbers[:20]}", call.t, call.id)
    if call.ends and call.answers and call.ends[0]["ev"] == "answer" and call.answers[-1] is not call.ends[0]:
        verdict.add("C4", f"{call.id} was answered behind its end", call.answers[-1]["t"], call.id)


def _order(story: Story, verdict: Verdict) -> None:
    """C3: in the order of a provider's own lines."""
    for provider in story.conns.values():
        last: dict[tuple[str, str, str], Call] = {}
        for call in provider.served:
            if not call.conn.ordered:
                continue
            key = (call.conn.name, call.to, call.kind)
            before = last.get(key)
            if before is not None and call.n < before.n and _promised(story, provider, before, call):
                what = (
                    f"{call.id} (n {call.n}) was served after {before.id} (n {before.n}) by {provider.name}"
                )
                verdict.add("C3", what, call.t, call.id, before.id)
            last[key] = call
        verdict.judged["pairs of caller and provider in order"] += len(last)


def _promised(story: Story, provider: Conn, before: Call, late: Call) -> bool:
    """Whether ``late`` had to come first. A request of oslo.messaging goes to another server of its topic when the
    chosen one is gone: it comes late. So does a call to any rank that a gateway got when the service was not there
    yet: it asks the brokers where it is, and sends it again.
    """
    if not story.places.is_broker(late.conn.at):
        return not any(_Case(story, call).touched() for call in (before, late))
    if isinstance(late.conn.at, int) or late.node != ANY:
        return True
    return any(held.name == late.to and held.covers(late.t, late.t) for held in provider.provides)


# ----------------------------------------------------------------- what depends on faults


class _Case:
    """One call, who could have served it, and whether anything touched the way there."""

    def __init__(self, story: Story, call: Call) -> None:
        self.story = story
        self.call = call
        self.began = call.t
        self.ended = call.ends[0]["t"] if call.ends else call.t + ARRIVES_S
        self.own = call.to not in story.services
        self.providers = [] if self.own else list(self._providers())

    def _providers(self) -> Iterator[tuple[Held, Conn]]:
        """Those who provided the service at some time of the call, where the call can reach them."""
        for held, conn in self.story.services[self.call.to]:
            if held.begin <= self.ended and held.end >= self.began and self._reaches(conn):
                yield held, conn

    def _reaches(self, provider: Conn) -> bool:
        """A call for no rank in particular goes up until somebody has the service; oslo has no tree."""
        places, caller = self.story.places, self.call.conn
        if self.call.node != ANY:
            return self.call.node == self._rank(provider)
        return not places.is_broker(caller.at) or self._rank(provider) in places.above(self._rank(caller))

    def _rank(self, conn: Conn) -> int:
        return self.story.places.rank_of(conn.at)

    def way(self, provider: Conn | None) -> Way:
        """From the caller to a provider, or to the broker that answers itself."""
        places, caller = self.story.places, self.call.conn
        way = caller.way if provider is None else caller.way | provider.way
        if not places.is_broker(caller.at):
            return way | self._beside(provider)
        here = places.rank_of(caller.at)
        there = here if self.call.node == ANY else self.call.node
        if provider is not None:
            there = self._rank(provider)
        return way | places.between(here, there)

    def _beside(self, provider: Conn | None) -> Way:
        """Between two nodes of oslo there is the network and no broker."""
        if provider is None:
            return Way(frozenset())
        here, there = self.story.places.rank_of(self.call.conn.at), self._rank(provider)
        return Way(
            frozenset(), frozenset(), frozenset({frozenset((here, there))}) if here != there else frozenset()
        )

    def touched(self, *, besides: Harmless | None = None) -> bool:
        """Whether a fault concerned the way to somebody who could have served it, or there was nobody."""
        times = (self.began, self.ended)
        ways = [self.way(conn) for _, conn in self.providers] or [self.way(None)]
        return any(self.story.trouble.touched(way, *times, besides=besides) for way in ways)

    def steady(self) -> bool:
        """Whether nobody came or went: caller, and every provider it could have reached."""
        times = (self.began, self.ended)
        there = self.own or bool(self.providers)
        since = self.began - (TOLD_S if self.call.kind == "fanout" else 0.0)
        return (
            there
            and self.call.conn.covers(*times)
            and all(held.covers(since, self.ended) for held, _ in self.providers)
        )

    # ------------------------------------------------------------- rules

    def judge(self, verdict: Verdict) -> None:
        """C5, C6, C12, and how much was judged."""
        call = self.call
        live = self.steady() and not self.touched(besides=proxy_restarted)
        kind = "forbidden calls" if call.expect else f"{call.kind}s"
        verdict.judged[f"{kind} {'live' if live else 'near a fault'}"] += 1
        if live and call.noresponse:
            self._arrived(verdict)
        elif live:
            self._succeeded(verdict)
        if call.kind == "call":
            self._errors(verdict, live)

    def _arrived(self, verdict: Verdict) -> None:
        """What nobody answers has to arrive all the same."""
        call = self.call
        rule = "C12" if call.kind != "call" else "C5"
        if not call.serves and not self.own:
            verdict.add(rule, f"{call.kind} {call.id} to {call.to} was never served", call.t, call.id)
        elif call.kind == "fanout":
            there = {conn.name for _, conn in self.providers} - {conn.name for _, conn in call.serves}
            for name in sorted(there):
                verdict.add(rule, f"fanout {call.id} to {call.to} never came to {name}", call.t, call.id)

    def _succeeded(self, verdict: Verdict) -> None:
        """C5."""
        call = self.call
        if not call.ends:
            return  # C1 has said so
        end = call.ends[0]
        if end["ev"] == "gave_up":
            verdict.add(
                "C5", f"{call.id} to {call.to} was given up ({end['why']}) on a live way", call.t, call.id
            )
            return
        if call.expect:
            return  # C6 looks at the number
        if end["errnum"] not in (0, errno.ENODATA if call.stream is not None else 0):
            verdict.add(
                "C5", f"{call.id} to {call.to} got {_name(end['errnum'])} on a live way", call.t, call.id
            )
        if call.stream is not None and end["errnum"] == errno.ENODATA:
            got = sum(1 for line in call.answers if line["errnum"] == 0)
            if got != call.stream:
                verdict.add("C5", f"stream {call.id} has {got} of {call.stream} responses", call.t, call.id)

    def _errors(self, verdict: Verdict, live: bool) -> None:
        """C6, and that nobody answered but who served."""
        call = self.call
        expected = getattr(errno, call.expect) if call.expect else None
        for line in call.answers:
            number = line["errnum"]
            if number == 0:
                self._answered(line, verdict)
                if expected is not None:
                    verdict.add(
                        "C9", f"{call.id} to {call.to} succeeded, policy forbids it", line["t"], call.id
                    )
            elif number == expected or (number == errno.ENODATA and call.stream is not None):
                continue
            elif number not in documented(call.conn):
                verdict.add("C6", f"{call.id} to {call.to} got {_name(number)}", line["t"], call.id)
            elif live and expected is not None:
                what = f"{call.id} to {call.to} got {_name(number)}, not {call.expect}"
                verdict.add("C6", what, line["t"], call.id)

    def _answered(self, line: Line, verdict: Verdict) -> None:
        """A success comes from whom it was delivered to."""
        call = self.call
        servers = {conn.name for _, conn in call.serves}
        if not self.own and (not servers or line.get("by", next(iter(servers), "")) not in servers):
            who = line.get("by", "somebody")
            verdict.add(
                "C9", f"{call.id} was answered by {who}, to whom it was not delivered", line["t"], call.id
            )


def documented(conn: Conn) -> frozenset[int]:
    """The errors that faults may cause for a connection."""
    return DOCUMENTED | LEAVING if str(conn.at).startswith("gateway") else DOCUMENTED


def _name(number: int) -> str:
    return errno.errorcode.get(number, f"errnum {number}")
