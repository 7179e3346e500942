"""A service that remembers a number, tells of changes by events, and streams to who watches.

python thermostat.py &
headgate rpc thermostat.set '{"celsius": 21}'
headgate rpc thermostat.get
headgate rpc --stream thermostat.watch
"""

import asyncio
import errno

import broker.client
from broker.errors import RpcError
from broker.identity import Role


class Thermostat:
    def __init__(self, h):
        self.h = h
        self.celsius = 20.0
        self.changed = asyncio.Condition()

    def get(self, request):
        return {"celsius": self.celsius}

    async def set(self, request):
        wanted = request.json().get("celsius")
        if not isinstance(wanted, (int, float)) or not 5 <= wanted <= 30:
            raise RpcError(errno.EINVAL, "celsius must be a number from 5 to 30")
        self.celsius = float(wanted)
        await self.h.publish("thermostat.changed", {"celsius": self.celsius, "by": request.message.userid})
        async with self.changed:
            self.changed.notify_all()
        return {"celsius": self.celsius}

    async def watch(self, request):
        yield {"celsius": self.celsius}  # until its caller cancels, or goes away
        while True:
            async with self.changed:
                await self.changed.wait()
            yield {"celsius": self.celsius}


async def main():
    async with broker.client.connect() as h:
        thermostat = Thermostat(h)
        methods = {
            "get": (thermostat.get, Role.USER),
            "watch": (thermostat.watch, Role.USER),
            "set": thermostat.set,
        }
        async with h.service("thermostat", methods):
            await h.wait_ended()


if __name__ == "__main__":
    asyncio.run(main())
