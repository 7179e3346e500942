"""A gateway whose rank 0 is lost, replaced, forgets and skips at random: what its clients get is true."""

import asyncio
import random

import pytest

from broker.errors import LinkEnded
from broker.wire.payload import decode_json, encode_json
from tests.unit.gateway.upstream.recorder import Recorder, until
from tests.unit.gateway.upstream.standin import StandIn, joined

SMALL = 800
"""Bytes of a history that has room for a few events."""


class Restless(StandIn):
    """Changes while it is asked, too; each of its events says whose it is, and which number it has."""

    def __init__(self, rank, chance):
        super().__init__(rank)
        self.chance, self.often, self.epochs = chance, 0.0, 1

    def say(self, most=1, heard=True):
        prefixes = self.prefixes
        self.prefixes = prefixes if heard else {}
        for _ in range(self.chance.randint(1, most)):
            said = {"epoch": self.attrs["broker.uuid"], "number": self.number + 1}
            self.event("t", payload=encode_json(said))
        self.prefixes = prefixes

    def cut(self):
        for link in list(self.links.values()):
            link.abort(LinkEnded("cut"))

    def replace(self):
        self.cut() if self.attrs["rank"] == "0" else self.lose_root()
        self.epochs += 1
        self.new_root(f"epoch-{self.epochs}")
        if self.chance.random() < 0.5:
            self.say(4, heard=False)

    def heal(self):
        self.root_lost = False

    def change(self):
        self.chance.choices(
            [
                lambda: self.say(6),
                lambda: self.say(4, heard=False),
                self.lose_root,
                self.heal,
                self.replace,
                self.cut,
                lambda: self.keep(self.chance.choice([1 << 20, SMALL])),
            ],
            [7, 4, 3, 2, 2, 1, 1],
        )[0]()

    def maybe(self, often):
        if self.chance.random() < often:
            self.change()

    def event_since(self, link, message):
        self.maybe(self.often)
        super().event_since(link, message)
        self.maybe(self.often)

    def attr_get(self, link, message):
        self.maybe(self.often / 4)
        super().attr_get(link, message)


class Client(Recorder):
    """Believes what it is told: events follow each other, in one numbering, but for what was said to be missing."""

    def __init__(self, history_msgs):
        super().__init__(history_msgs)
        self.last = self.epoch = None
        self.lies = []

    def upstream_joined(self, epoch_changed, missed):
        if epoch_changed or missed is None:
            self.last = self.epoch = None
        elif self.last is not None:
            self.last += missed

    def published(self, messages):
        for message in messages:
            number = message.sequence
            if self.last is not None and number != self.last + 1:
                self.lies.append(f"{number} behind {self.last}")
            self.last = number
            if message.topic != "t":
                continue
            said = decode_json(message.payload)
            if (said["number"], said["epoch"]) != (number, self.history.epoch):
                self.lies.append(f"{said} as {number} of {self.history.epoch}")
            if self.epoch not in (None, said["epoch"]):
                self.lies.append(f"{said} behind {self.epoch}")
            self.epoch = said["epoch"]

    def has(self, epoch, number):
        return self.epoch == epoch and self.last >= number


async def play(seed, rank):
    chance = random.Random(seed)
    standin, client = Restless(rank, chance), Client(chance.choice([3, 20, 1000]))
    standin.page_msgs = chance.choice([1, 2, 5])
    if chance.random() < 0.9:
        standin.keep(chance.choice([1 << 20, SMALL]))
    standin.say(5)
    standin.often = chance.choice([0, 0.1, 0.3])
    async with joined(standin, centre=client, rejoin_max_s=0.02) as (_, _, upstream):
        for _ in range(chance.randint(5, 40)):
            standin.change()
            if chance.random() < 0.6:
                await asyncio.sleep(chance.choice([0, 0, 0.002, 0.01]))
        standin.often = 0.0
        standin.heal()
        for _ in range(2):
            await until(lambda: upstream.joined and not upstream.handle.numbering.in_doubt)
            standin.say()
            newest = standin.attrs["broker.uuid"], standin.number
            await until(lambda newest=newest: client.has(*newest), str(newest))
    assert not client.lies, client.lies[:4]


@pytest.mark.parametrize("rank", [0, 3])
def test_what_clients_get_is_true(rank):
    async def main():
        for seed in range(12):
            try:
                async with asyncio.timeout(20):
                    await play(seed, rank)
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"seed {seed}: {error}") from error

    asyncio.run(main())
