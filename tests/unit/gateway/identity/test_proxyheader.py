"""The PROXY protocol, versions 1 and 2, from friends and from others."""

import contextlib
import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ProtocolError
from gateway.identity.proxyheader import SIGNATURE, V1_BYTES, V2_BYTES, Header
from tests.tables import for_each


def v2(source="192.0.2.7", port=4711, *, command=0x21, family=None, block=None, tlvs=b""):
    """A header of version 2."""
    address = ipaddress.ip_address(source)
    addresses = (
        address.packed + ipaddress.ip_address("10.0.0.1" if address.version == 4 else "fd00::1").packed
    )
    if block is None:
        block = addresses + struct.pack(">HH", port, 443) + tlvs
    kind = family if family is not None else (0x11 if address.version == 4 else 0x21)
    return SIGNATURE + struct.pack(">BBH", command, kind, len(block)) + block


def read(data, step=10**6):
    """Feed a header and what follows as it comes; returns the source and how many bytes were taken."""
    header, at = Header(), 0
    while not header.done and at < len(data):
        size = min(header.need, step, len(data) - at)
        header.feed(data[at : at + size])
        at += size
    assert header.done, "not complete"
    return header.source, at


GOOD = [
    (b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 443\r\n", ("192.0.2.7", 4711)),
    (b"PROXY TCP6 2001:db8::7 fd00::1 0 65535\r\n", ("2001:db8::7", 0)),
    (
        b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 65535),
    ),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
    (v2(), ("192.0.2.7", 4711)),
    (v2("2001:db8::7", 1), ("2001:db8::7", 1)),
    (v2(tlvs=b"\x04\x00\x02ab\x20\x00\x00"), ("192.0.2.7", 4711)),
    (v2(command=0x20), None),
    (v2(command=0x20, block=b""), None),
    (v2(command=0x20, family=0x99, block=b"x" * 20), None),
    (v2(family=0x00, block=b""), None),
    (v2(family=0x00, block=b"anything"), None),
    (v2(family=0x31, block=b"\0" * 216), None),
]


@for_each(("data", "source"), GOOD)
@for_each("step", [1, 2, 7, 10**6])
def test_headers(data, source, step):
    """However the bytes come, and not one of what follows is taken."""
    assert read(data + b"\x16\x03\x01\x02\x00GET / HTTP/1.1\r\n", step) == (source, len(data))


BAD = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 4711\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 443 5\r\n",
    b"PROXY TCP4 192.0.2.7  10.0.0.1 4711 443\r\n",
    b"PROXY  TCP4 192.0.2.7 10.0.0.1 4711 443\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 443 \r\n",
    b"PROXY TCP4 2001:db8::7 fd00::1 1 2\r\n",
    b"PROXY TCP6 192.0.2.7 10.0.0.1 1 2\r\n",
    b"PROXY TCP4 192.0.2.256 10.0.0.1 1 2\r\n",
    b"PROXY TCP4 192.0.2.07 10.0.0.1 1 2\r\n",
    b"PROXY TCP4 192.0.2.7/8 10.0.0.1 1 2\r\n",
    b"PROXY TCP6 fe80::1%eth0 fd00::1 1 2\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 65536 443\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 -1 443\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 +1 443\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 01 443\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 1_0 443\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 \xb2 443\r\n",
    b"PROXY TCP4 \xff 10.0.0.1 1 443\r\n",
    b"PROXY UDP4 192.0.2.7 10.0.0.1 1 443\r\n",
    b"PROXY UNKNOWNS\r\n and more",
    b"proxy UNKNOWN\r\n and more",
    b"PROXY UNKNOWN " + b"x" * V1_BYTES,
    b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 443\n" + b"x" * V1_BYTES,
    SIGNATURE + b"\x11\x11\x00\x0c" + b"x" * 12,
    SIGNATURE + b"\x22\x11\x00\x0c" + b"x" * 12,
    SIGNATURE + b"\x21\x12\x00\x0c" + b"x" * 12,
    SIGNATURE + b"\x21\x13\x00\x0c" + b"x" * 12,
    SIGNATURE[:-1] + b"X\x21\x11\x00\x0c" + b"x" * 12,
    v2(block=b"x" * 11),
    v2("2001:db8::7", block=b"x" * 35),
    v2(family=0x31, block=b"x" * 215),
    v2(tlvs=b"\x04"),
    v2(tlvs=b"\x04\x00"),
    v2(tlvs=b"\x04\x00\x05ab"),
    SIGNATURE + b"\x21\x11\xff\xff" + b"x" * 100,
    v2(block=b"\0" * (V2_BYTES - 15)),
]


@for_each("data", BAD)
@for_each("step", [1, 10**6])
def test_what_is_no_header(data, step):
    with pytest.raises(ProtocolError):
        read(data, step)


def test_more_than_was_asked_for_is_the_callers_fault():
    with pytest.raises(ValueError):
        Header().feed(b"x" * 16)


@given(st.data())
def test_hostile_bytes_end_in_time(data):
    """Anything at all: a header that is complete, one that wants more within its bounds, or a refusal."""
    start = data.draw(
        st.sampled_from([b"", SIGNATURE, SIGNATURE + b"\x21\x11", b"PROXY ", b"PROXY TCP4 1.1.1.1 "])
    )
    sent = start + data.draw(st.binary(max_size=200))
    header, at = Header(), 0
    with contextlib.suppress(ProtocolError):
        while not header.done and at < len(sent):
            assert 0 < header.need <= V2_BYTES
            size = min(header.need, data.draw(st.integers(1, 64)), len(sent) - at)
            header.feed(sent[at : at + size])
            at += size
    assert at <= V2_BYTES
    if header.source is not None:
        assert header.done
        ipaddress.ip_address(header.source[0])
        assert 0 <= header.source[1] <= 65535


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(1, 20), st.binary(max_size=30), st.booleans())
def test_every_address_comes_through(address, port, step, rest, version_1):
    other = "10.0.0.1" if address.version == 4 else "fd00::1"
    line = f"PROXY TCP{address.version} {address} {other} {port} 443\r\n".encode()
    sent = line if version_1 else v2(str(address), port)
    assert read(sent + rest, step) == ((str(address), port), len(sent))
