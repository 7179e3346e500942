"""Wait for an event, and print what it says; exit code 4 when it did not come in time.

python wait_for.py thermostat.changed 30
"""

import asyncio
import json
import sys

import broker.client


async def main(topic, seconds):
    async with broker.client.connect() as h, h.subscribe(topic) as events:
        print("waiting", file=sys.stderr, flush=True)  # from here on none is missed
        try:
            async with asyncio.timeout(seconds):
                event = await anext(events)
        except TimeoutError:
            return 4
    print(json.dumps(event.json()))
    return 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(sys.argv[1], float(sys.argv[2]))))
