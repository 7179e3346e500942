"""What a load has cost the victims, and the bars that it is held against."""

import msgspec

P99_S, WORST_S, MEMORY_MIB = 0.05, 0.5, 32.0
FDS_MORE = 8
"""Descriptors that a process may keep: ZeroMQ makes some when it first needs them."""


class Timed(msgspec.Struct):
    """One kind of operation."""

    n: int
    p99_ms: float
    worst_ms: float


def timed(seconds: list[float]) -> Timed:
    """Of at least one value. Below 100 of them p99 is the second worst."""
    ordered = sorted(seconds)
    p99 = ordered[max(0, min(len(ordered) - 2, int(len(ordered) * 0.99)))]
    return Timed(len(ordered), round(p99 * 1000, 2), round(ordered[-1] * 1000, 2))


class Figures(msgspec.Struct, kw_only=True):
    """One load. Memory and descriptors are those of each process."""

    load: str
    seed: int
    seconds: float
    crowding: float
    """How many times as busy the machine was as it has cores, all of it: above 1 times say little."""
    sent: int
    """Chunks that were taken of the attacker."""
    ops: dict[str, Timed]
    failed: dict[str, int]
    ended: list[str]
    """Links of innocents that ended, and what the ranks said of each other."""
    lost: int
    rss_before: dict[str, float]
    rss_peak: dict[str, float]
    rss_after: dict[str, float]
    fds_before: dict[str, int]
    fds_after: dict[str, int]

    @property
    def p99_ms(self) -> float:
        return max(op.p99_ms for op in self.ops.values())

    @property
    def worst(self) -> str:
        """The operation with the worst time."""
        return max(self.ops, key=lambda op: self.ops[op].worst_ms)

    @property
    def grown_mib(self) -> float:
        """The most that a process has kept."""
        return max(self.rss_after[name] - before for name, before in self.rss_before.items())

    @property
    def peak_mib(self) -> float:
        return max(self.rss_peak[name] - before for name, before in self.rss_before.items())

    def broken(self) -> list[str]:
        """What no load and no busy machine excuses."""
        said = [f"{count} times {text}" for text, count in self.failed.items()]
        said += [f"ended: {each}" for each in self.ended]
        if self.lost:
            said.append(f"{self.lost} events are lost")
        for name, before in self.fds_before.items():
            if self.fds_after[name] > before + FDS_MORE:
                said.append(f"{name} had {before} descriptors and has {self.fds_after[name]}")
        return said

    def below(self) -> list[str]:
        """The bars that it does not reach, those of ``broken`` included."""
        said = self.broken()
        for name, op in self.ops.items():
            if op.p99_ms > P99_S * 1000 or op.worst_ms > WORST_S * 1000:
                said.append(f"{name}: p99 {op.p99_ms:.0f} ms, worst {op.worst_ms:.0f} ms of {op.n}")
        if self.grown_mib > MEMORY_MIB:
            said.append(f"{self.grown_mib:.0f} MiB are not given back")
        return said


HEAD = ("load", "p99 ms", "worst ms", "of", "ended", "lost", "peak MiB", "kept MiB", "sent", "busy")


def row(figures: Figures) -> tuple[str, ...]:
    """A line of the table."""
    worst = figures.ops[figures.worst]
    return (
        figures.load + (f" {figures.seed}" if figures.seed else ""),
        f"{figures.p99_ms:.1f}",
        f"{worst.worst_ms:.0f}",
        figures.worst,
        str(len(figures.ended) + sum(figures.failed.values())),
        str(figures.lost),
        f"{figures.peak_mib:.0f}",
        f"{figures.grown_mib:.0f}",
        str(figures.sent),
        f"{figures.crowding:.1f}",
    )


WIDTHS = (24, 8, 9, 13, 6, 6, 9, 9, 9, 6)


def line(cells: tuple[str, ...]) -> str:
    return "".join(
        cell.ljust(width) if at in (0, 3) else cell.rjust(width - 2) + "  "
        for at, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    ).rstrip()
