"""The file service as a worker, over a channel that a test holds the other end of."""

import asyncio
import hashlib
import os

import msgspec
import pytest

from broker.errors import ConfigError
from broker.nfp.files.service import LOCAL, TRANSFERS_MAX, FileService
from broker.nfp.files.tree import Tree
from broker.nfp.frames import Packet
from broker.nfp.names import FILESHARING, FSS, Command, Sender
from broker.nfp.peer.channel import Traffic

DATA = os.urandom(700_000)


class Held:
    """A channel; the test is the broker."""

    def __init__(self, name):
        self.name = name
        self.broker = "here"
        self.trouble = ""
        self.traffic = Traffic()
        self.sent = asyncio.Queue()
        self.receiver = None
        self.opened = None

    def start(self, receiver, open_body):
        self.receiver = receiver
        self.opened = open_body()
        receiver.on_connect("here", {"broker": "headgate", "features": ["recorded", "delete", "jobs"]})

    def send(self, packet):
        self.sent.put_nowait(packet)
        return True

    async def writable(self):
        await asyncio.sleep(0)

    def reopen(self, why):
        raise AssertionError(why)

    async def close(self):
        self.trouble = "closed"

    def say(self, command, uuid, body):
        packet = Packet(
            Sender.BROKER, command, client=b"c1#1", uuid=uuid, body=msgspec.json.encode(body), service=""
        )
        self.receiver.on_packet(packet)

    async def heard(self, *commands):
        async with asyncio.timeout(10):
            while True:
                packet = await self.sent.get()
                if packet.command in commands:
                    return packet


def post(held, uuid, task, **kwargs):
    held.say(Command.POST, uuid, {"task": task, "args": [], "kwargs": kwargs, "timeout": 60})


async def result(held):
    while True:
        packet = await held.heard(Command.RESPONSE)
        if packet.status != 201:
            (value,) = msgspec.json.decode(packet.data).values()
            return value


@pytest.fixture
def root(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("hello norfab\n")
    (tmp_path / "sub" / "big.bin").write_bytes(DATA)
    (tmp_path / "w.key_secret").write_text("secret")
    return tmp_path


def serving(root, scenario, service=FILESHARING, **settings):
    async def run():
        files = FileService(Tree(root, **settings))
        held = Held("files-1")
        worker = files.worker(
            service, name="files-1", channel=held, drain_s=0.1
        )  # nobody says that it has the results
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(worker.run())
                ready = await held.heard(Command.READY)
                assert ready.service == service
                await scenario(held)
                worker.stop()
                assert await running == "shutdown"
        finally:
            files.close()
            files.close()

    asyncio.run(run())


def test_it_says_what_it_offers(root):
    async def scenario(held):
        assert held.opened["credits"] == TRANSFERS_MAX
        assert {"list_files", "walk", "file_details", "fetch_file"} <= set(held.opened["tasks"])

    serving(root, scenario)
    serving(root, scenario, service=FSS)


def test_listings_and_details_are_results_of_the_deployed_form(root):
    async def scenario(held):
        post(held, "u1", "list_files", url="nf://")
        told = await result(held)
        assert (told["result"], told["failed"], told["status"]) == (["a.txt", "sub"], False, "completed")
        post(held, "u2", "file_details", url=["nf://a.txt", "nf://w.key_secret"])
        told = await result(held)
        assert told["failed"] is False
        details = told["result"]["nf://a.txt"]["result"]
        assert details["md5hash"] == hashlib.md5(b"hello norfab\n").hexdigest()
        assert (details["size_bytes"], details["exists"]) == (13, True)
        assert told["result"]["nf://w.key_secret"]["failed"] is True
        post(held, "u3", "walk", url="nf://sub")
        assert (await result(held))["result"] == ["nf://sub/big.bin"]
        post(held, "u4", "file_details", url="nf://../etc/passwd")
        told = await result(held)
        assert (told["failed"], told["status"]) == (True, "failed")
        assert told["result"]["exists"] is False

    serving(root, scenario)


def test_a_fetch_streams_by_credits_and_then_answers(root):
    async def scenario(held):
        post(held, "u1", "fetch_file", url="nf://sub/big.bin", chunk_size=256_000, offset=0)
        chunks = [(await held.heard(Command.STREAM)).data]
        assert held.sent.empty()
        for offset in (256_000, 512_000):
            held.say(Command.PUT, "u1", {"offset": offset})
        chunks += [(await held.heard(Command.STREAM)).data for _ in range(2)]
        assert b"".join(chunks) == DATA
        told = await result(held)
        assert (told["result"], told["failed"]) == (True, False)

    serving(root, scenario)


def test_many_transfers_wait_without_holding_each_other_up(root):
    async def scenario(held):
        for number in range(20):
            post(held, f"u{number}", "fetch_file", url="nf://sub/big.bin", chunk_size=400_000)
        first = {(await held.heard(Command.STREAM)).uuid for _ in range(20)}
        assert len(first) == 20
        post(held, "quick", "list_files", url="nf://sub")
        assert (await result(held))["result"] == ["big.bin"]
        for number in range(20):
            held.say(Command.PUT, f"u{number}", {"offset": 400_000})
        for _ in range(20):
            assert (await result(held))["result"] is True

    serving(root, scenario)


def test_a_client_that_falls_silent_and_one_that_cancels(root):
    async def scenario(held):
        post(held, "u1", "fetch_file", url="nf://sub/big.bin", chunk_size=100, chunk_timeout=0.05)
        told = await result(held)
        assert told["failed"] is True
        assert "without a request" in told["errors"][0]
        before = len(os.listdir("/proc/self/fd"))
        post(held, "u2", "fetch_file", url="nf://sub/big.bin", chunk_size=100, chunk_timeout=50)
        await held.heard(Command.STREAM)
        assert len(os.listdir("/proc/self/fd")) == before + 1
        held.say(Command.DELETE, "u2", {})
        packet = await held.heard(Command.RESPONSE)
        while packet.status == 201:
            packet = await held.heard(Command.RESPONSE)
        assert packet.status == 417
        assert len(os.listdir("/proc/self/fd")) == before

    serving(root, scenario)


def test_the_brokers_own_two_are_named_and_cannot_be_confused(root):
    files = FileService(Tree(root))
    workers = asyncio.run(both(files))
    assert [(worker.service, worker.name) for worker in workers] == list(LOCAL)
    with pytest.raises(ConfigError):
        files.worker("mmi.service.broker")
    files.close()


async def both(files):
    return files.local_workers(Held)
