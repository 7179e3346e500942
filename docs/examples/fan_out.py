"""Ask every rank how much memory its broker takes, all at once; a rank that does not answer is said to be away."""

import asyncio

import broker.client
from broker.errors import HeadgateError


async def ask(h, rank):
    try:
        answer = await h.rpc("broker.rusage", nodeid=rank, timeout_s=2)
        return f"rank {rank}: {answer.json()['maxrss'] // 1024} MiB"
    except (HeadgateError, TimeoutError) as error:
        return f"rank {rank}: away ({error})"


async def main():
    async with broker.client.connect() as h:
        for line in await asyncio.gather(*(ask(h, rank) for rank in range(await h.size()))):
            print(line)


if __name__ == "__main__":
    asyncio.run(main())
