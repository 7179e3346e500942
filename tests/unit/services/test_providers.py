"""service.add and service.remove."""

from broker.identity import Credentials, Role
from broker.wire.message import NORESPONSE
from tests.tables import for_each
from tests.unit.services.desk import GUEST, NOBODY, REMOTE_OWNER, Desk


def test_add_and_remove():
    desk = Desk()
    me, other = desk.client(), desk.client()
    answer = me.ask("service.add", {"service": "mysvc"})
    assert (answer.errnum, answer.payload) == (0, None)
    assert desk.provider("mysvc") is me
    assert me.refused("service.add", {"service": "mysvc"}) == (17, "")
    assert other.refused("service.remove", {"service": "mysvc"}) == (2, "")
    assert me.ask("service.remove", {"service": "mysvc"}).errnum == 0
    assert me.refused("service.remove", {"service": "mysvc"}) == (2, "")


@for_each(
    ("name", "errnum"),
    [("a.b", 22), ("", 22), ("x" * 245, 22), ("attr", 17), ("broker", 17), ("service", 17)],
)
def test_names_nobody_can_have(name, errnum):
    assert Desk().client().refused("service.add", {"service": name}) == (errnum, "")


def test_built_in_services_cannot_be_taken_away():
    desk = Desk()
    assert desk.client().refused("service.remove", {"service": "attr"}) == (2, "")
    assert desk.client().ask("attr.list").errnum == 0


@for_each("topic", ["service.add", "service.remove"])
@for_each("data", [None, {}, {"service": 5}, b"{}", b'{"service":"\\ud800"}\0'])
def test_bad_payloads(topic, data):
    assert Desk().client().refused(topic, data) == (71, "")


def test_a_guests_name_begins_with_its_userid():
    me = Desk().client(GUEST)
    for name in ("mysvc", "99-mysvc", "1234", "12345-x"):
        assert me.refused("service.add", {"service": name}) == (1, "")
    assert me.ask("service.add", {"service": "1234-mysvc"}).errnum == 0
    assert me.ask("service.remove", {"service": "1234-mysvc"}).errnum == 0


def test_who_is_nobody_has_no_services():
    """Several people are: a service of one would be the others', too."""
    me = Desk().client(Credentials(65534, int(Role.USER)))
    assert me.refused("service.add", {"service": "65534-mysvc"}) == (1, "")


def test_without_response_only_what_a_connector_refuses_is_answered():
    """Deployed connectors look at the payload and at names they know; the rest is their broker's, which is silent."""
    me = Desk().client(GUEST)
    for name in ("a.b", "mysvc"):
        me.silent("service.add", {"service": name}, flags=NORESPONSE)
    assert me.refused("service.add", {}, flags=NORESPONSE) == (71, "")
    me = Desk().client()
    me.silent("service.add", {"service": "quiet"}, flags=NORESPONSE)
    assert b"quiet" in me.port.services
    answer = me.ask("service.add", {"service": "quiet"}, flags=NORESPONSE)
    assert (answer.errnum, answer.flags & NORESPONSE) == (17, 0)
    me.silent("service.remove", {"service": "quiet"}, flags=NORESPONSE)
    assert me.refused("service.remove", {"service": "quiet"}, flags=NORESPONSE) == (2, "")


def test_brokers_register_nothing_here():
    desk = Desk()
    assert desk.client(REMOTE_OWNER, kind=1).refused("service.add", {"service": "child"})[0] == 1
    assert desk.client(NOBODY).refused("service.add", {"service": "x"})[0] == 1
    assert desk.provider("child") is None
