"""Network namespaces: real ones, where root runs the tests."""

import asyncio
import os
import shutil
import subprocess
import sys

import pytest

from broker.errors import HeadgateError
from gateway.cluster.network import Network, addresses, entering, ip, mac
from gateway.cluster.shape import Shape

SHAPE = Shape("t", 4)
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="optional: needs root and ip(8)"
)
SAYS = """
import socket, sys
sock = socket.socket()
sock.settimeout(0.15)
sock.connect((sys.argv[1], 8050))  # the kernel answers, or nobody does
sock.settimeout(10)
print(sock.recv(9).decode())
"""
SERVES = """
import socket
door = socket.create_server(("", 8050))
print("up", flush=True)
while True:
    door.accept()[0].sendall(b"hello")
"""


def test_addresses_are_different_and_of_one_net():
    shape = Shape("t", 1000)
    ips = {ip(rank) for rank in shape.ranks()}
    assert len(ips) == len({mac(rank) for rank in shape.ranks()}) == 1000
    assert all(each.startswith("10.78.") for each in ips)
    assert addresses(SHAPE)[3] == "tcp://10.78.0.4:8050"


def started(network, rank, *argv):
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, preexec_fn=network.enter(rank))


def reaching(network, *ranks):
    """Those of `ranks` that reach rank 0; they try side by side."""
    argv = (sys.executable, "-S", "-E", "-c", SAYS, ip(0))
    trying = {rank: started(network, rank, *argv) for rank in ranks}
    return [rank for rank, each in trying.items() if each.communicate(timeout=20)[0].strip() == "hello"]


@pytest.mark.smoke
@needs_root
def test_ranks_reach_each_other_unless_they_are_cut():
    async def run():
        network = Network(SHAPE)
        before = os.readlink("/proc/self/ns/net")
        await network.open()
        assert os.readlink("/proc/self/ns/net") == before
        server = started(network, 0, sys.executable, "-S", "-E", "-c", SERVES)
        try:
            assert server.stdout.readline() == "up\n"
            assert reaching(network, 1) == [1]
            await network.cut(frozenset({1, 3}))
            assert reaching(network, 1, 2) == [2]
            await network.cut(frozenset({0, 1}))
            assert reaching(network, 1, 2) == [1]
            await network.cut(frozenset())
            assert reaching(network, 1, 2) == [1, 2]
            with pytest.raises(HeadgateError):
                await network.cut(frozenset({1, 9}))  # half of it is done
            assert reaching(network, 1) == []
            await network.cut(frozenset())
            assert reaching(network, 1) == [1]
            await asyncio.gather(*(network.cut(frozenset(each)) for each in ({1}, {2}, {1, 2}, {3})))
            assert reaching(network, 1, 2, 3) == [1, 2]
        finally:
            server.kill()
            server.communicate()
            await network.close()
            await network.close()

    asyncio.run(run())


@needs_root
def test_the_machines_own_network_sees_nothing_of_it():
    def links():
        return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.count(
            "\n"
        )

    async def run():
        before, descriptors = links(), len(os.listdir("/proc/self/fd"))
        network = Network(SHAPE)
        await network.open()
        assert links() == before
        await network.close()
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 1  # the loop has made its own
        assert links() == before

    asyncio.run(run())


@needs_root
def test_what_ip_says_is_told():
    async def run():
        network = Network(SHAPE)
        await network.open()
        try:
            with pytest.raises(HeadgateError, match=r'ip: .*"v9"'):
                await network.cut(frozenset({9}))
        finally:
            await network.close()

    asyncio.run(run())


def test_what_the_kernel_refuses_is_told():
    with pytest.raises(HeadgateError, match="setns"):
        entering(-1)()
