"""X-Forwarded-For: whom to believe, and how far."""

import ipaddress

from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from gateway.identity.proxies import (
    HOPS,
    TOLD,
    ListenerNetworks,
    Networks,
    ProxiedAddress,
    address_of,
    forwarded_for,
    host_name,
    is_local_host,
)
from gateway.settings.schema import ListenEntry
from tests.tables import for_each

PROXIES = Networks(["10.0.0.0/8", "fd00::/8"])


@for_each(
    ("headers", "client"),
    [
        ([], None),
        (["192.0.2.7"], "192.0.2.7"),
        (["6.6.6.6, 192.0.2.7"], "192.0.2.7"),
        (["6.6.6.6, 192.0.2.7, 10.0.0.2"], "192.0.2.7"),
        (["6.6.6.6", "192.0.2.7, 10.0.0.2", "10.0.0.3"], "192.0.2.7"),
        (["10.1.1.1, 10.0.0.2"], "10.1.1.1"),
        (["192.0.2.7:4711"], "192.0.2.7"),
        (["[2001:db8::7]:4711"], "2001:db8::7"),
        (["2001:db8::7"], "2001:db8::7"),
        (["6.6.6.6, fd00::1"], "6.6.6.6"),
        (["::ffff:192.0.2.7"], "192.0.2.7"),
        (["6.6.6.6, unknown"], None),
        (["6.6.6.6, junk, 10.0.0.2"], "10.0.0.2"),
        (["6.6.6.6, , 10.0.0.2"], "10.0.0.2"),
        ([""], None),
        (["192.0.2.7 "], "192.0.2.7"),
        (["0x7f.1"], None),
        (["127.1"], None),
    ],
)
def test_read_from_right_to_left(headers, client):
    found = forwarded_for(headers, PROXIES)
    assert (None if found is None else str(found)) == client


@given(st.lists(st.text(max_size=40), max_size=5))
def test_the_left_of_a_true_entry_never_matters(invented):
    assert str(forwarded_for([*invented, "192.0.2.7, 10.0.0.2"], PROXIES)) == "192.0.2.7"


@given(st.lists(st.text(), max_size=5))
def test_junk_raises_nothing(headers):
    found = forwarded_for(headers, PROXIES)
    assert found is None or isinstance(found, ipaddress.IPv4Address | ipaddress.IPv6Address)


def test_a_long_header_is_read_so_far():
    header = ", ".join(["192.0.2.7", *["10.0.0.1"] * HOPS])
    assert str(forwarded_for([header], PROXIES)) == "10.0.0.1"


@for_each(
    ("host", "found"),
    [
        ("Dash.Example.org", "dash.example.org"),
        ("localhost:8280", "localhost"),
        ("[::1]:8280", "::1"),
        ("[::1]", "::1"),
        ("[::1", ""),
        ("[::1]x", ""),
        ("localhost:x", ""),
        ("localhost:", ""),
        ("a:b:c", ""),
        ("", ""),
    ],
)
def test_host_names(host, found):
    assert host_name(host) == found


@for_each("host", ["localhost", "LOCALHOST:1", "127.0.0.1:1", "127.9.9.9", "[::1]:1"])
def test_local_hosts(host):
    assert is_local_host(host)


@for_each(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "0.0.0.0", "192.0.2.7", "", "[::]", "::1"],
)
def test_other_hosts(host):
    assert not is_local_host(host)


def test_addresses_of_names():
    assert str(address_of(("::ffff:192.0.2.7", 1, 0, 0))) == "192.0.2.7"
    assert str(address_of(("fe80::1%eth0", 1, 0, 2))) == "fe80::1"
    assert str(address_of("")) == str(address_of(b"\0abstract")) == str(address_of("/run/x")) == "127.0.0.1"
    assert address_of(None) is None


# ---------------------------------------------------------------- listeners


class Transport:
    def __init__(self, peername, sockname):
        self._extra = {"peername": peername, "sockname": sockname}

    def get_extra_info(self, name, default=None):
        return self._extra.get(name, default)

    def is_closing(self):
        return False


def client_of(peer, headers=None, trusted=("10.0.0.0/8",), own=("192.0.2.1", 443), bound=None):
    listeners = ListenerNetworks()
    listeners.opened(ListenEntry(trusted_proxies=trusted), bound or own)
    request = make_mocked_request("GET", "/", headers=headers or {}, transport=Transport(peer, own))
    return listeners.client(request)


def test_a_request_is_looked_at_once_however_many_ask():
    request = make_mocked_request("GET", "/", transport=Transport(("6.6.6.6", 1), ("192.0.2.1", 443)))
    listeners = ListenerNetworks()
    assert listeners.client(request) is listeners.client(request)


def test_an_untrusted_peer_is_the_client_whatever_it_says():
    found = client_of(("6.6.6.6", 1), {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https"})
    assert (found.address, found.peer, found.scheme) == ("6.6.6.6", "6.6.6.6", "http")


def test_a_trusted_peer_speaks_for_its_client():
    found = client_of(("10.0.0.2", 1), {"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "http, https"})
    assert (found.address, found.peer, found.scheme) == ("6.6.6.6", "10.0.0.2", "https")


def test_a_listener_that_is_not_known_trusts_nobody():
    found = client_of(("10.0.0.2", 1), {"X-Forwarded-For": "6.6.6.6"}, bound=("192.0.2.1", 444))
    assert found.address == "10.0.0.2"


def test_a_wildcard_listener_is_found_by_its_port():
    found = client_of(("10.0.0.2", 1), {"X-Forwarded-For": "6.6.6.6"}, bound=("0.0.0.0", 443))
    assert found.address == "6.6.6.6"
    found = client_of(("::ffff:10.0.0.2", 1, 0, 0), {"X-Forwarded-For": "6.6.6.6"}, bound=("::", 443, 0, 0))
    assert found.address == "6.6.6.6"


def test_listeners_have_their_own_networks():
    listeners = ListenerNetworks()
    listeners.opened(ListenEntry(trusted_proxies=("10.0.0.0/8",)), ("192.0.2.1", 1))
    listeners.opened(ListenEntry(), ("192.0.2.1", 2))
    for port, client in ((1, "6.6.6.6"), (2, "10.0.0.2")):
        transport = Transport(("10.0.0.2", 9), ("192.0.2.1", port))
        request = make_mocked_request("GET", "/", headers={"X-Forwarded-For": "6.6.6.6"}, transport=transport)
        assert listeners.client(request).address == client


def test_behind_a_proxy_header_the_headers_of_its_client_count_only_when_it_is_trusted_itself():
    seen = ProxiedAddress("6.6.6.6", 7, "10.0.0.2")
    found = client_of(seen, {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https"})
    assert (found.address, found.peer, found.scheme, found.local) == ("6.6.6.6", "10.0.0.2", "http", False)


def test_a_scheme_that_nobody_knows_is_told_once_and_few_of_them(caplog):
    listeners = ListenerNetworks()
    listeners.opened(ListenEntry(trusted_proxies=("10.0.0.0/8",)), ("192.0.2.1", 443))
    for said in ("on", "on", "", *map(str, range(TOLD + 5))):
        transport = Transport(("10.0.0.2", 9), ("192.0.2.1", 443))
        request = make_mocked_request("GET", "/", headers={"X-Forwarded-Proto": said}, transport=transport)
        assert listeners.client(request).scheme == "http"
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == TOLD
    assert "'on', expected https, http, wss or ws: taken as http" in told[0]


LOCAL = ("127.0.0.1", 8280)


@for_each(
    ("peer", "headers", "trusted", "local"),
    [
        (("127.0.0.1", 1), {"Host": "127.0.0.1:8280"}, (), True),
        (("127.0.0.1", 1), {"Host": "localhost:8280"}, (), True),
        (("127.0.0.1", 1), {"Host": "evil.example:8280"}, (), False),
        (("127.0.0.1", 1), {}, (), False),
        (("192.0.2.7", 1), {"Host": "localhost"}, (), False),
        # a proxy on this machine: the socket's peer is local, the client is not
        (("127.0.0.1", 1), {"Host": "localhost", "X-Forwarded-For": "6.6.6.6"}, (), False),
        (("127.0.0.1", 1), {"Host": "localhost", "X-Forwarded-For": "127.0.0.1"}, ("127.0.0.1/32",), False),
        (("127.0.0.1", 1), {"Host": "localhost", "Forwarded": "for=127.0.0.1"}, (), False),
        (("127.0.0.1", 1), {"Host": "localhost", "Via": "1.1 x"}, (), False),
        # nor does a header make a client local
        (("10.0.0.2", 1), {"Host": "localhost", "X-Forwarded-For": "127.0.0.1"}, ("10.0.0.0/8",), False),
        (ProxiedAddress("127.0.0.1", 7, "10.0.0.2"), {"Host": "localhost"}, (), False),
        (ProxiedAddress("6.6.6.6", 7, "127.0.0.1"), {"Host": "localhost"}, (), False),
        (ProxiedAddress("127.0.0.1", 7, "127.0.0.1"), {"Host": "localhost"}, (), True),
        # a trusted proxy is no client of this machine, whatever it leaves out
        (("127.0.0.1", 1), {"Host": "localhost"}, ("127.0.0.0/8",), False),
        (ProxiedAddress("127.0.0.1", 7, "127.0.0.2"), {"Host": "localhost"}, ("127.0.0.2",), False),
        (("127.0.0.1", 1), {"Host": "localhost", "CF-Connecting-IP": "127.0.0.1"}, (), False),
    ],
)
def test_who_is_on_this_machine(peer, headers, trusted, local):
    found = client_of(peer, headers, trusted, own=LOCAL)
    assert found.local is local
    assert found.loopback_listener


def test_a_unix_socket():
    found = client_of("", {"Host": "localhost"}, (), own="/run/gate.sock")
    assert (found.address, found.peer, found.local) == ("unix", "unix", True)
    found = client_of(
        "", {"Host": "x", "X-Forwarded-For": "6.6.6.6"}, ("127.0.0.1/32",), own="/run/gate.sock"
    )
    assert (found.address, found.peer, found.local) == ("6.6.6.6", "unix", False)
