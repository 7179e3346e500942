"""What a real libflux client sees of a tree of four, beside flux-core: one function a work; each returns its rows.

The client is ``libflux.c``, linked at run time with the libflux of ``FLUX_PREFIX``; the links of both trees are ZeroMQ
with CURVE, as they are by default. The rules are those of ``works``: contenders take turns, a ratio is taken within
each round, the figure is the median. A run that lost or reordered an answer, or got a wrong one, is an error.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import PIPE, CalledProcessError, Popen
from typing import Any

from tests.bench.contenders import Contender, Flux, Headgate, Pure
from tests.bench.loadgen import LoadError, Loadgen, Result
from tests.bench.targets import Row
from tests.bench.works import (
    RTT_TURNS,
    Bench,
    Rounds,
    available,
    middle,
    one_line,
    per_round,
    say,
    take_turns,
    why_not,
)

SOURCE = Path(__file__).with_name("libflux.c")
SIZE = 4
KIB, MIB = 2**10, 2**20
LARGE = 16 * MIB
STORM_S = 0.5
"""Strangers come for so much longer than is measured: while the client warms up, too."""
LARGE_SAMPLES = 3
"""So many large messages at the least, however long one takes."""


@dataclass(frozen=True)
class Case:
    """One row: what the client does, and which of its figures is compared.

    Attributes:
        key: the row's. mode: the client's. figure: the name of the figure in its result.
        caller: the rank it is attached to. provider: the rank of the service or subscriber, if there is one.
        options: further ones of the client. strangers: the generator of those who knock meanwhile, if any do.
    """

    key: str
    mode: str
    figure: str
    caller: int = 0
    provider: int | None = None
    payload: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    strangers: Loadgen | None = None

    @contextmanager
    def storm(self, one: Contender, seconds: float) -> Iterator[None]:
        """Let strangers come to the tree of ``one`` meanwhile."""
        if self.strangers is None:
            yield
            return
        door = str(one.rundir / DOORS[one.name])
        words = [str(self.strangers.path), door, str(STRANGERS_PER_S), str(seconds)]
        with Popen(words, stdout=PIPE, text=True) as storm:
            yield
            assert storm.stdout is not None
            say(f"strangers at {one.name}: {storm.stdout.read().strip()}")

    def where(self, one: Contender) -> dict[str, str]:
        """The options that say where in the tree of ``one`` the client's handles are."""
        ends = {"caller": one.uri(self.caller)}
        if self.provider is not None:
            ends["provider"] = one.uri(self.provider)
        return ends


def _pings(key: str, rank: int, window: int, payload: int = 0) -> Case:
    return Case(key, "ping", "per_s", payload=payload, options={"nodeid": rank, "window": window})


FLAT = Case("libflux_rtt_flat", "ping", "p50_us", options={"nodeid": 3})
BESIDE_STRANGERS = Case("libflux_strangers", "ping", "p99_us", options={"nodeid": 3})
STRANGERS_PER_S = 10_000
DOORS = {"headgate": "tree-0", "flux-core": "tbon-0"}
"""Where rank 0 of each tree listens for its children."""
RTT = (
    Case("libflux_rtt_0", "ping", "p50_us", options={"nodeid": 0}),
    Case("libflux_rtt_3", "ping", "p50_us", options={"nodeid": 3}),
    Case("libflux_service_rtt", "service", "p50_us", provider=0, payload=1),
    Case("libflux_event", "event", "p50_us", caller=3, provider=2, payload=16),
)
RATES = (
    _pings("libflux_ping_3_64", 3, 64),
    _pings("libflux_ping_3_256", 3, 256),
    _pings("libflux_ping_3_64_4k", 3, 64, 4 * KIB),
    _pings("libflux_ping_3_256_4k", 3, 256, 4 * KIB),
    _pings("libflux_ping_0_64", 0, 64),
    Case("libflux_service_64", "service", "per_s", provider=0, payload=1, options={"window": 64}),
    Case("libflux_service_64_4k", "service", "per_s", provider=0, payload=4 * KIB, options={"window": 64}),
)
LARGEST = Case(
    "libflux_large",
    "service",
    "mb_per_s",
    provider=3,
    payload=LARGE,
    options={"nodeid": 3, "least": LARGE_SAMPLES},
)


def libflux_rtt(bench: Bench) -> list[Row]:
    """A libflux client, one call or event at a time: rank 0, rank 3, a service, a subscriber two ranks away."""
    brief = replace(bench, seconds=bench.seconds / RTT_TURNS, rounds=bench.rounds * RTT_TURNS)
    return _rows(brief, RTT)


def libflux_flat(bench: Bench) -> list[Row]:
    """A libflux client, one call at a time to rank 3, which is one hop away: trees of kary:32."""
    brief = replace(bench, seconds=bench.seconds / RTT_TURNS, rounds=bench.rounds * RTT_TURNS)
    return _rows(brief, [FLAT], "kary:32")


def libflux_strangers(bench: Bench) -> list[Row]:
    """The same while strangers knock at rank 0, ten thousand a second, none of whom gets in."""
    with closing(Loadgen(Path(__file__).with_name("strangers.c"))) as strangers:
        return _rows(bench, [replace(BESIDE_STRANGERS, strangers=strangers)])


def libflux_rate(bench: Bench) -> list[Row]:
    """A libflux client with 64 and 256 calls in flight."""
    return _rows(bench, RATES)


def libflux_large(bench: Bench) -> list[Row]:
    """A libflux client that sends 16 MiB to rank 3 and back."""
    return _rows(bench, [LARGEST])


# ---------------------------------------------------------------- trees, turns, rows


def missing() -> str:
    """Why the client cannot be built or compared; "" when it can."""
    if reason := why_not():
        return reason
    prefix = Path(os.environ["FLUX_PREFIX"])
    if not (prefix / "include" / "flux" / "core.h").is_file():
        return "FLUX_PREFIX has no include/flux/core.h"
    return "" if library(prefix) else "FLUX_PREFIX has no libflux-core.so"


def library(prefix: Path) -> Path | None:
    """The library of a flux-core, which distributions put into folders of several names."""
    places = ("lib", "lib64", "lib/*")
    return next((found for place in places for found in prefix.glob(f"{place}/libflux-core.so")), None)


def flags(prefix: Path) -> list[str]:
    """What the compiler is told, so that the program finds its libflux when it runs, too."""
    found = library(prefix)
    assert found is not None
    return [f"-I{prefix}/include", str(found), f"-Wl,-rpath,{found.parent}"]


@contextmanager
def _client() -> Iterator[Loadgen]:
    client = Loadgen(SOURCE, *flags(Path(os.environ["FLUX_PREFIX"])))
    try:
        yield client
    finally:
        client.close()


def _rows(bench: Bench, cases: Sequence[Case], topology: str = "kary:2") -> list[Row]:
    """Measure all cases on the same trees; without a client, rows that say why."""
    if reason := missing():
        return [Row(case.key, note=reason) for case in cases]
    try:
        kinds = available(Headgate, Flux) if cases[0].strangers else available(Headgate, Pure, Flux)
        with _client() as client, ExitStack() as stack:
            trees = [stack.enter_context(kind(SIZE, topology)) for kind in kinds]
            return list(_settled(bench, client, trees, cases))
    except CalledProcessError as error:
        return [Row(case.key, note=f"libflux.c was not built: {error}") for case in cases]


def _turn(bench: Bench, client: Loadgen, case: Case) -> Callable[[Contender], Result]:
    say(case.key)
    return partial(_measure, bench, client, case)


def _measure(bench: Bench, client: Loadgen, case: Case, one: Contender) -> Result:
    options = {**case.options, **case.where(one)}
    try:
        with case.storm(one, bench.seconds + STORM_S):
            result = client.run(
                case.mode, pids=one.pids, seconds=bench.seconds, payload=case.payload, **options
            )
    except LoadError as error:
        raise LoadError(f"{one.name}, {case.key}: {error}") from error
    say(f"{one.name:<11} {one_line(result)}")
    return with_throughput(result)


def with_throughput(result: Result) -> Result:
    """Add the megabytes a second of calls one at a time: a payload counts once for its way there and back."""
    if result.get("p50_us"):
        result["mb_per_s"] = result["payload"] / result["p50_us"]
    return result


def _settled(
    bench: Bench, client: Loadgen, trees: Sequence[Contender], cases: Sequence[Case]
) -> Iterator[Row]:
    for case in cases:
        done = take_turns(bench, trees, _turn(bench, client, case))
        yield settled(case, done)


def settled(case: Case, done: Rounds) -> Row:
    """The row of what the rounds gave."""
    row = Row(case.key, raw={"rounds": done})
    row.figures = {name: text(case.figure, done, name) for name in done}
    busy = median(result["own_busy"] for result in done[Headgate.name])
    row.figures["generator"] = f"{busy:.0%} of a core"
    if case.figure == "p99_us":
        row.settle([result["p99_us"] / 1e3 for result in done[Headgate.name]])
    else:
        row.settle(per_round(done, Headgate.name, Flux.name, case.figure))
    return row


def text(figure: str, done: Rounds, name: str) -> str:
    """What a contender did, for the reader."""
    value = middle(done, name, figure) or 0.0
    if figure.endswith("_us"):
        return f"{value:.0f} / {middle(done, name, 'p99_us'):.0f} µs"
    return f"{value:.0f} MB/s" if figure == "mb_per_s" else f"{value / 1e3:,.1f} k/s"


WORKS: dict[str, Callable[[Bench], list[Row]]] = {
    "libflux_rtt": libflux_rtt,
    "libflux_flat": libflux_flat,
    "libflux_strangers": libflux_strangers,
    "libflux_rate": libflux_rate,
    "libflux_large": libflux_large,
}
