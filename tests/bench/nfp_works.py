"""NFP beside deployed NorFab: the same raw peers against both brokers, then everybody's own peers."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from tests.bench import nfp_contenders as nfp
from tests.bench import processes
from tests.bench.nfp_contenders import (
    NfpBroker,
    NorFab,
    NorFabOurZmq,
    Ours,
    OursForNorFab,
    OursStored,
    OursStoredForNorFab,
)
from tests.bench.targets import Row
from tests.bench.works import Bench, say

Result = dict[str, Any]
LOADS = {"200": (200, 16, 1500), "64k": (65536, 8, 200)}
"""Bytes in and out, jobs in flight, jobs of one turn."""
CROWDS = (10, 1000, 5000)
RTT_JOBS = 300
WHOLE = {"sequence": 100, "many": 200}
"""One job after the other, and all at once: jobs of one turn."""
AT_ONCE = 100
CLIENTS = 4
IN_FLIGHT = 200
SETTLE_S = 0.5


@contextmanager
def peers(broker: NfpBroker, *words: object) -> Iterator[Any]:
    """Raw peers beside ``broker`` for the length of a block."""
    process = nfp.peer(*words[:1], broker.endpoint, broker.key, *words[1:])
    try:
        yield process
    finally:
        if words[0] != "client":
            process.terminate()
        processes.stop(process)


def jobs(broker: NfpBroker, count: int, window: int, size: int) -> Result:
    """``count`` jobs through ``broker``; ``cpu_us`` is what it used for each."""
    began = processes.cpu_s([broker.pid])
    with peers(broker, "client", f"client-{time.monotonic_ns()}", count, window, size) as client:
        result = nfp.line_of(client)
    result["cpu_us"] = (processes.cpu_s([broker.pid]) - began) / (result["jobs"] + window) * 1e6
    if result["lost"]:
        raise RuntimeError(f"{broker.name} lost {result['lost']} of {count} jobs")
    return result


def compare(bench: Bench, kinds: Sequence[type[NfpBroker]], load: str) -> dict[str, list[Result]]:
    """Each broker once a round, the order turned round every time."""
    size, window, count = LOADS[load]
    done: dict[str, list[Result]] = {kind.name: [] for kind in kinds}
    with ExitStack() as stack:
        brokers = [stack.enter_context(kind()) for kind in kinds]
        for broker in brokers:
            worker = stack.enter_context(peers(broker, "worker", "worker-1", size))
            nfp.line_of(worker)
            jobs(broker, window, window, 16)
        for number in range(bench.rounds):
            for broker in brokers if number % 2 == 0 else reversed(brokers):
                result = jobs(broker, count, window, size)
                done[broker.name].append(result)
                say(
                    f"{broker.name:<18} {result['per_s']:>8,.0f} jobs/s  {result['cpu_us']:>6.0f} µs of CPU each"
                )
    return done


def ratio(key: str, done: dict[str, list[Result]], ours: str, theirs: str, what: str, text: str) -> Row:
    """``what`` of ours over theirs, round by round."""
    row = Row(key, raw={ours: done[ours], theirs: done[theirs]})
    row.settle([a[what] / b[what] for a, b in zip(done[ours], done[theirs], strict=True)])
    row.figures = {
        "headgate": text.format(median(one[what] for one in done[ours])),
        "NorFab": text.format(median(one[what] for one in done[theirs])),
    }
    return row


def broker_cpu(bench: Bench) -> list[Row]:
    """NFP broker: CPU for each job and jobs/s, the same raw peers against NorFab's broker and ours."""
    if why := NorFab.missing():
        return [Row(f"nfp_{name}", note=why) for name in ("cpu_200", "cpu_64k", "jobs")]
    rows = []
    for load in LOADS:
        done = compare(bench, (NorFabOurZmq, Ours, OursStored), load)
        theirs = NorFabOurZmq.name
        rows.append(ratio(f"nfp_cpu_{load}", done, Ours.name, theirs, "cpu_us", "{:.0f} µs"))
        rows.append(ratio(f"nfp_cpu_{load}_stored", done, OursStored.name, theirs, "cpu_us", "{:.0f} µs"))
        if load == "200":
            rows.append(ratio("nfp_jobs", done, Ours.name, theirs, "per_s", "{:,.0f}/s"))
            rows.append(ratio("nfp_jobs_stored", done, OursStored.name, theirs, "per_s", "{:,.0f}/s"))
        done = compare(bench, (NorFab, Ours), load)
        rows.append(ratio(f"nfp_cpu_{load}_pinned", done, Ours.name, NorFab.name, "cpu_us", "{:.0f} µs"))
    return rows


def crowd(bench: Bench) -> list[Row]:
    """NFP broker: round trip of a job with 1 000 and 5 000 registered workers, beside 10."""
    times: dict[int, list[float]] = {count: [] for count in CROWDS}
    with ExitStack() as stack:
        brokers = {count: stack.enter_context(OursStored()) for count in CROWDS}
        for count, broker in brokers.items():
            nfp.line_of(stack.enter_context(peers(broker, "worker", "worker-1", 16)))
            nfp.line_of(stack.enter_context(peers(broker, "crowd", "idle", count)))
        for _ in range(bench.rounds):
            for count, broker in brokers.items():
                times[count].append(jobs(broker, RTT_JOBS, 1, 16)["p50_us"])
        say("  ".join(f"{count} workers: p50 {median(each):.0f} µs" for count, each in times.items()))
    rows = []
    for count in CROWDS[1:]:
        row = Row(f"nfp_crowd_{count}", raw={"p50_us": times})
        row.settle([many / few for many, few in zip(times[count], times[CROWDS[0]], strict=True)])
        row.figures = {
            "headgate": f"p50 {median(times[count]):.0f} µs, of 10: {median(times[CROWDS[0]]):.0f} µs"
        }
        rows.append(row)
    return rows


# -- everybody's own peers -------------------------------------------------------------------------


class Peers:
    """A broker with a whole worker and clients: NorFab's own, or ours."""

    def __init__(self, stack: ExitStack, kind: type[NfpBroker], slots: int = 0, *, norfab: bool) -> None:
        self.stack = stack
        self.norfab = norfab
        self.broker = stack.enter_context(kind())
        self.worker = self.start("worker", "worker-1", *([slots] if slots else []))
        nfp.line_of(self.worker)
        time.sleep(SETTLE_S)
        self.clients = [self.start("client", "client-1")]

    def start(self, part: str, name: str, *more: object) -> Any:
        process = self.stack.enter_context(nfp.whole_peer(self.broker, part, name, *more, norfab=self.norfab))
        if part == "client":
            nfp.line_of(process)
        return process

    @property
    def client(self) -> Any:
        return self.clients[0]

    def jobs(self, what: str, count: int) -> Result:
        """``count`` short jobs, shared by the clients; ``per_s`` of all, ``cpu_us`` of the broker for each."""
        cpu, began = processes.cpu_s([self.broker.pid]), time.perf_counter()
        share = count // len(self.clients)
        words = {"do": what, "task": "ping", "count": share, "workers": "any"}
        for client in self.clients:
            self.tell(client, **words, **({"service": "dummy"} if self.norfab else {}))
        seconds = [self.answer(client)["seconds"] for client in self.clients]
        took = seconds[0] if len(seconds) == 1 else time.perf_counter() - began
        used = processes.cpu_s([self.broker.pid]) - cpu
        return {"per_s": count / took, "cpu_us": used / count * 1e6}

    @staticmethod
    def tell(client: Any, **words: object) -> None:
        client.stdin.write(json.dumps(words) + "\n")
        client.stdin.flush()

    def answer(self, client: Any) -> Result:
        while "ok" not in (line := nfp.line_of(client)):
            if "error" in line:
                raise RuntimeError(f"{self.broker.name}: {line['error']}")
        return line["ok"]


def end_to_end(bench: Bench) -> list[Row]:
    """NFP whole: jobs/s of our client and worker at our broker, against NorFab's three; both keep what they must."""
    rows = {what: Row(f"nfp_whole_{what}") for what in WHOLE}
    if why := NorFab.missing():
        return [Row(row.key, note=why) for row in rows.values()]
    with ExitStack() as stack:
        ours, theirs = Peers(stack, OursStored, norfab=False), Peers(stack, NorFab, norfab=True)
        for what, count in WHOLE.items():
            done = in_turn(bench, [ours, theirs], what, count)
            rows[what] = ratio(f"nfp_whole_{what}", done, OursStored.name, NorFab.name, "per_s", "{:,.0f}/s")
    return list(rows.values())


def in_turn(bench: Bench, sides: Sequence[Peers], what: str, count: int) -> dict[str, list[Result]]:
    """Each side once a round, the order turned round every time."""
    done: dict[str, list[Result]] = {side.broker.name: [] for side in sides}
    for number in range(bench.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            done[side.broker.name].append(side.jobs(what, count))
    rates = {name: median(one["per_s"] for one in results) for name, results in done.items()}
    say("  ".join(f"{name} {rate:,.0f} jobs/s ({what})" for name, rate in rates.items()))
    return done


def norfab_peers(bench: Bench) -> list[Row]:
    """NFP broker: NorFab's unmodified client and worker, with NorFab's broker and with ours instead of it."""
    keys = ("sequence", "clients", "many", "many_cpu", "many_cpu_off")
    if why := NorFab.missing():
        return [Row(f"nfp_norfab_{key}", note=why) for key in keys]
    theirs, stored, plain = NorFab.name, OursStoredForNorFab.name, OursForNorFab.name
    with ExitStack() as stack:
        sides = [Peers(stack, kind, norfab=True) for kind in (NorFab, OursStoredForNorFab, OursForNorFab)]
        for side in sides:
            side.jobs("many", AT_ONCE)
        one = in_turn(bench, sides, "sequence", AT_ONCE)
        many = in_turn(bench, sides, "many", AT_ONCE)
        for side in sides:
            side.clients += [side.start("client", f"client-{number}") for number in range(2, CLIENTS + 1)]
        four = in_turn(bench, sides, "sequence", AT_ONCE)
    return [
        ratio("nfp_norfab_sequence", one, stored, theirs, "per_s", "{:,.0f}/s"),
        ratio("nfp_norfab_clients", four, stored, theirs, "per_s", "{:,.0f}/s"),
        ratio("nfp_norfab_many", many, stored, theirs, "per_s", "{:,.0f}/s"),
        ratio("nfp_norfab_many_cpu", many, stored, theirs, "cpu_us", "{:,.0f} µs"),
        ratio("nfp_norfab_many_cpu_off", many, plain, theirs, "cpu_us", "{:,.0f} µs"),
    ]


def killed(bench: Bench) -> list[Row]:
    """NFP broker killed with 200 jobs in flight and started again: when the first is done, and what was lost."""
    back, lost = Row("nfp_restart"), Row("nfp_killed")
    seconds, missing = [], []
    for _ in range(bench.rounds):
        with ExitStack() as stack:
            side = Peers(stack, OursStored, nfp.CREDITS, norfab=False)
            marker = side.broker.folder / "ran"
            nap = {"seconds": 0.2, "marker": str(marker)}
            side.tell(side.client, do="many", task="nap", count=IN_FLIGHT, workers="any", kwargs=nap)
            nfp.line_of(side.client)
            broker = side.broker
            assert broker.process is not None
            assert isinstance(broker, Ours)
            broker.process.kill()
            processes.stop(broker.process)
            begun = len(marker.read_text().splitlines()) if marker.exists() else 0
            broker.launch()
            began = time.monotonic()
            while not marker.exists() or len(marker.read_text().splitlines()) <= begun:
                time.sleep(0.005)
            seconds.append(time.monotonic() - began)
            done = side.answer(side.client)["results"]
            missing.append(float(IN_FLIGHT - sum(len(each) == 1 and not _failed(each) for each in done)))
            say(f"back after {seconds[-1]:.2f} s, {missing[-1]:.0f} of {IN_FLIGHT} jobs lost or failed")
    back.settle(seconds)
    back.figures = {"headgate": f"{median(seconds):.2f} s"}
    lost.settle(missing)
    lost.value = max(missing)
    lost.figures = {"headgate": f"{lost.value:.0f} of {IN_FLIGHT}"}
    return [back, lost]


def _failed(results: dict[str, Any]) -> bool:
    return any(isinstance(each, dict) and each.get("failed") for each in results.values())


WORKS = {
    "nfp_cpu": broker_cpu,
    "nfp_norfab": norfab_peers,
    "nfp_whole": end_to_end,
    "nfp_killed": killed,
    "nfp_crowd": crowd,
}
