"""The seeds that have failed: what they found must not come back, so the soak plays them for ever."""

from pathlib import Path

FILE = Path(__file__).with_name("seeds.txt")


def kept() -> list[tuple[str, int]]:
    """(load, seed) of each."""
    lines = [line.split() for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    return [(name, int(seed)) for name, seed in lines]


def keep(load: str, seed: int) -> None:
    """Add one that failed."""
    if (load, seed) not in kept():
        with FILE.open("a") as file:
            file.write(f"{load} {seed}\n")
