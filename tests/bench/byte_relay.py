"""The limit: an asyncio process that greets like a broker and copies bytes, looking at none of them.

What one connection sends, all others get: with two connections it is a relay, with more a
fan-out. It ends with its stdin.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import ClassVar


class Copy(asyncio.Protocol):
    """One connection; ``others`` are the write methods of all the rest."""

    joined: ClassVar[list["Copy"]] = []

    def __init__(self) -> None:
        self.others: list[Callable[[bytes], None]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"\0")
        self.write = transport.write
        self.joined.append(self)
        self.meet()

    def connection_lost(self, exc: Exception | None) -> None:
        self.joined.remove(self)
        self.meet()

    def meet(self) -> None:
        for one in self.joined:
            one.others = [other.write for other in self.joined if other is not one]

    def data_received(self, data: bytes) -> None:
        for write in self.others:
            write(data)


async def serve(path: str) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    server = await loop.create_unix_server(Copy, path, backlog=128)
    print(f"local://{path}", flush=True)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
