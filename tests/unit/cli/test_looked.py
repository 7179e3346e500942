"""``--watch`` goes on over the next link."""

import asyncio

import pytest

from broker.cli.session import looked
from broker.errors import LinkEnded
from tests.tables import for_each


class Handle:
    def __init__(self, ended=None):
        self.ended = ended
        self.waited = 0

    async def writable(self):
        self.waited += 1


def looking(handle, watch, *outcomes):
    left = list(outcomes)

    async def look():
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    return asyncio.run(looked(handle, look, watch))


def test_a_look_is_had_again_when_its_link_was_lost():
    handle = Handle()
    assert looking(handle, True, LinkEnded("away"), LinkEnded("again"), "picture") == "picture"
    assert handle.waited == 3


@for_each(("watch", "ended"), [(False, None), (True, LinkEnded("for good"))])
def test_one_look_or_the_end_of_all_links_is_an_error(watch, ended):
    with pytest.raises(LinkEnded):
        looking(Handle(ended), watch, LinkEnded("away"), "picture")
