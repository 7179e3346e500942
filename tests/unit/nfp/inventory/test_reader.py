"""The inventory read in a thread: nobody waits long, and who asks after a change sees it."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ConfigError
from broker.nfp.inventory import Datastore, Reader, datastore

PATIENCE_S = 40.0


class Held:
    """Reading stops until the test lets it go on, and must not happen in the loop's thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.free.set()
        self.threads: set[int] = set()
        real = datastore._text_of

        def held(path: Path) -> str:
            self.threads.add(threading.get_ident())
            assert self.free.wait(PATIENCE_S)
            return real(path)

        monkeypatch.setattr(datastore, "_text_of", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def story(path: Path, script: Callable[[Reader, Datastore], Any], patience_s: float = PATIENCE_S) -> None:
    async def main() -> None:
        found = Datastore(path, environ={}, check_s=0.0)
        reader = Reader(found, asyncio.get_running_loop(), patience_s)
        try:
            await reader.start()
            await script(reader, found)
        finally:
            reader.close()

    asyncio.run(main())


def write(path: Path, number: int) -> None:
    path.write_text(f"workers: {{w: [{{n: {number}}}]}}" + "\n" * number)


def test_who_asks_after_a_change_gets_what_was_read_in_a_thread(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "inventory.yaml"
    write(path, 1)

    async def script(reader: Reader, found: Datastore) -> None:
        assert found.get_inventory("w") == {"n": 1}
        write(path, 2)
        held.free.clear()
        looking = [asyncio.get_running_loop().create_task(reader.look()) for _ in range(2)]
        await asyncio.sleep(0.02)
        assert not any(each.done() for each in looking)
        assert found.get_inventory("w") == {"n": 1}
        held.free.set()
        await asyncio.gather(*looking)
        assert found.get_inventory("w") == {"n": 2}

    story(path, script)
    assert held.threads
    assert threading.get_ident() not in held.threads


def test_a_long_reading_answers_from_what_there_was(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "inventory.yaml"
    write(path, 1)

    async def script(reader: Reader, found: Datastore) -> None:
        write(path, 2)
        held.free.clear()
        await reader.look()
        assert found.get_inventory("w") == {"n": 1}
        held.free.set()
        await until(lambda: found.get_inventory("w") == {"n": 2})

    story(path, script, patience_s=0.05)


def test_reload_tells_how_it_went_once_it_has(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "inventory.yaml"
    write(path, 1)

    async def script(reader: Reader, found: Datastore) -> None:
        write(path, 2)
        held.free.clear()
        reloading = asyncio.get_running_loop().create_task(reader.reload())
        await asyncio.sleep(0.02)
        assert not reloading.done()
        held.free.set()
        assert ((await reloading)["patterns"], found.get_inventory("w")) == (1, {"n": 2})
        path.write_text("workers: [")
        with pytest.raises(ConfigError):
            await reader.reload()
        assert found.get_inventory("w") == {"n": 2}

    story(path, script)


def test_faults_at_the_start_are_the_callers(tmp_path: Path) -> None:
    async def script(reader: Reader, found: Datastore) -> None:
        raise AssertionError("it must not start")

    with pytest.raises(ConfigError, match="cannot be read"):
        story(tmp_path / "none.yaml", script)


def test_without_a_file_and_after_the_end_everybody_is_answered_at_once() -> None:
    async def main() -> None:
        reader = Reader(Datastore(None), asyncio.get_running_loop())
        await reader.start()
        await reader.look()
        reader.close()
        reader.close()
        await reader.look()

    asyncio.run(main())


def test_the_end_does_not_wait_for_a_reading(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "inventory.yaml"
    write(path, 1)

    async def script(reader: Reader, found: Datastore) -> None:
        write(path, 2)
        held.free.clear()
        looking = asyncio.get_running_loop().create_task(reader.look())
        await asyncio.sleep(0.01)
        looking.cancel()
        reader.close()
        held.free.set()

    story(path, script)
