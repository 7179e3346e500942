"""Open streams: whose they are and how they end."""

from broker.identity import Credentials, Role
from broker.services import service as room
from broker.services.service import Service, Streams, method
from broker.serving.request import LATER
from broker.wire.message import NORESPONSE, STREAMING
from tests.unit.services.desk import GUEST, Desk


class Ticker(Service):
    name = "tick"

    def __init__(self, context, services):
        super().__init__(context, services)
        self.streams: Streams[int] = Streams()

    @method("open", allow=Role.USER, streaming=True)
    def open(self, request):
        self.streams.open(request, request.field("n", int))
        return LATER

    @method("all")
    def all(self, request):
        for stream, number in self.streams:
            stream.respond({"n": number})
        return

    @method("end")
    def end(self, request):
        for stream, _ in self.streams:
            self.streams.end(stream.sender, stream.message.matchtag)
        return

    def disconnected(self, sender):
        self.streams.forget(sender)

    def cancelled(self, sender, matchtag):
        self.streams.end(sender, matchtag)


def desk() -> Desk:
    return Desk(kinds=[Ticker])


def test_each_stream_gets_its_own():
    d = desk()
    me, other = d.client(), d.client()
    mine = [me.stream("tick.open", {"n": n}) for n in range(2)]
    theirs = other.stream("tick.open", {"n": 7})
    me.ask("tick.all")
    assert [stream.news() for stream in (*mine, theirs)] == [[{"n": 0}], [{"n": 1}], [{"n": 7}]]
    assert len(d.service(Ticker).streams) == 3


def test_all_may_be_ended_while_walking():
    d = desk()
    me = d.client()
    streams = [me.stream("tick.open", {"n": n}) for n in range(3)]
    me.ask("tick.end")
    assert [stream.news() for stream in streams] == [[61]] * 3
    assert len(d.service(Ticker).streams) == 0
    me.ask("tick.all")
    assert [stream.news() for stream in streams] == [[]] * 3


def test_a_matchtag_used_again_ends_the_first():
    d = desk()
    me = d.client()
    me.send("tick.open", {"n": 1}, flags=STREAMING, tag=9)
    assert me.ask("tick.open", {"n": 2}, flags=STREAMING, tag=9).errnum == 61
    assert len(d.service(Ticker).streams) == 1


def test_ends_are_counted_once():
    d = desk()
    me = d.client()
    stream = me.stream("tick.open", {"n": 1})
    me.silent("tick.cancel", {"matchtag": stream.tag})
    me.silent("tick.cancel", {"matchtag": stream.tag})
    me.silent("tick.disconnect")
    me.silent("tick.disconnect")
    assert stream.news() == [61]
    assert len(d.service(Ticker).streams) == 0


def test_a_request_that_wants_no_response_opens_nothing():
    d = desk()
    d.client().silent("tick.open", {"n": 1}, flags=STREAMING | NORESPONSE)
    assert len(d.service(Ticker).streams) == 0


def test_streams_are_bounded(monkeypatch):
    monkeypatch.setattr(room, "STREAMS_MAX", 2)
    d = desk()
    me = d.client()
    me.stream("tick.open", {"n": 1})
    me.stream("tick.open", {"n": 2})
    errnum, why = me.refused("tick.open", {"n": 3}, flags=STREAMING)
    assert (errnum, why) == (11, "2 streams are open")
    me.silent("tick.disconnect")
    me.stream("tick.open", {"n": 4})
    assert len(d.service(Ticker).streams) == 1


def test_guests_have_a_cap_each_and_one_together_and_the_owner_has_the_rest(monkeypatch):
    monkeypatch.setattr(room, "GUEST_STREAMS_MAX", 2)
    monkeypatch.setattr(room, "GUESTS_STREAMS_MAX", 3)
    monkeypatch.setattr(room, "STREAMS_MAX", 4)
    d = desk()
    guest, other, owner = d.client(GUEST), d.client(Credentials(3000, GUEST.rolemask)), d.client()
    for n in range(2):
        guest.stream("tick.open", {"n": n})
    why = f"userid {GUEST.userid} has 2 streams open, the limit of one guest"
    assert guest.refused("tick.open", {"n": 1}, flags=STREAMING) == (11, why)
    other.stream("tick.open", {"n": 1})
    why = "guests have 3 streams open, the limit of all guests"
    assert other.refused("tick.open", {"n": 1}, flags=STREAMING) == (11, why)
    owner.stream("tick.open", {"n": 1})
    guest.silent("tick.disconnect")
    guest.stream("tick.open", {"n": 1})


def test_taking_an_unknown_stream_gives_none():
    streams: Streams[int] = Streams()
    assert streams.take(b"", 1) is None
