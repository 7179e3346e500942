"""``headgate trace --events`` beside gateways that come and go."""

import asyncio

from broker.cli.trace import watch_events
from broker.client import connect


class ScreenStub:
    def __init__(self):
        self.notes: list[str] = []
        self.hops: list[dict] = []

    def note(self, _verb, text):
        self.notes.append(text)

    def record(self, value, _text, _style=""):
        self.hops.append(value)

    async def until(self, condition):
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.01)


async def test_a_gateway_that_leaves_ends_no_trace(rundir, live, monkeypatch):
    monkeypatch.setattr("broker.cli.trace.RETRY_S", 0.05)
    screen = ScreenStub()
    async with (
        connect(f"inproc://{rundir}") as handle,
        handle.subscribe("news."),
        asyncio.TaskGroup() as group,
    ):
        watching = group.create_task(watch_events(handle, screen, [0], ["news."], 0))
        await screen.until(lambda: screen.notes)
        assert screen.notes == ["1 broker(s) and 1 gateway process(es) look on"]
        await handle.publish("news.a")
        await screen.until(lambda: any(hop["outcome"] == "nobody" for hop in screen.hops))
        await live.gateway.stop()
        await screen.until(lambda: any("is not there" in note for note in screen.notes))
        await handle.publish("news.b")
        await screen.until(lambda: screen.hops[-1]["topic"] == "news.b")
        watching.cancel()
    assert [note.partition(" ")[2] for note in screen.notes[1:3]] == [
        "leaves",
        "is not there, or knows of no traces",
    ]
