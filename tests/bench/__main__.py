"""`python -m tests.bench [NAMES...]`: measure, print the table, write the JSON file."""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import (
    builds,
    counting,
    guards,
    hotspots,
    journal_read,
    journal_works,
    keeping,
    libflux_works,
    load,
    nfp_works,
    oslo_works,
    processes,
    report,
    spark_batch,
    spark_cluster,
    spark_days,
    spark_tables,
    spark_works,
    tree,
    web_works,
    works,
)
from tests.bench.contenders import Flux, Headgate, Pure
from tests.bench.loadgen import WEB_SOURCE, LoadError, Loadgen, compiler
from tests.bench.oslo_contenders import RabbitMq
from tests.bench.targets import Row
from tests.bench.web_contenders import Crossbar, Gateway, Nats
from tests.live import rabbit

JOURNAL = {**journal_works.WORKS, **journal_read.WORKS}
SPARK = {
    **spark_works.WORKS,
    **spark_batch.WORKS,
    **spark_tables.WORKS,
    **spark_days.WORKS,
    **spark_cluster.WORKS,
}
WORKS: dict[str, Callable[[works.Bench], list[Row]]] = {
    "relay": works.relay,
    "rtt": works.rtt,
    "counting": counting.measure,
    "keeping": keeping.measure,
    "guards": guards.measure,
    "events": works.events,
    "rpc": works.rpc,
    "idle": works.idle,
    "start": works.start,
    "tree": tree.measure,
    **libflux_works.WORKS,
    **web_works.WORKS,
    **nfp_works.WORKS,
    **oslo_works.WORKS,
    **JOURNAL,
    **SPARK,
}
_WINGS = (libflux_works.WORKS, web_works.WORKS, nfp_works.WORKS, oslo_works.WORKS, JOURNAL, SPARK)
GROUPS = {
    "broker": [name for name in WORKS if not any(name in wing for wing in _WINGS)],
    "libflux": list(libflux_works.WORKS),
    "web": list(web_works.WORKS),
    "nfp": list(nfp_works.WORKS),
    "oslo": list(oslo_works.WORKS),
    "journal": list(JOURNAL),
    "spark": list(SPARK),
}
RESULTS = Path(__file__).with_name("results") / "bench.json"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which works: {' '.join(WORKS)}; {', '.join(GROUPS)} for some at once (default: all)",
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS, metavar="FILE", help="where the figures go (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement (%(default)s)")
    parser.add_argument(
        "--payload", type=int, default=16, help="bytes in each message, 8 or more (%(default)s)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="three short rounds: a glance, no figures to publish"
    )
    parser.add_argument(
        "--wheel", type=Path, metavar="WHEEL", help="measure this build, and the sources beside it"
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="put the table into this Markdown document, too"
    )
    parser.add_argument(
        "--any-load", action="store_true", help=f"write it although the load is above {load.QUIET:g}"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=load.WAIT_S,
        metavar="SECONDS",
        help="how long --page waits for a lower load before it gives up (%(default)g)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Crossbar.cache,
        metavar="DIR",
        help="where Crossbar is installed for the comparison, once (%(default)s)",
    )
    parser.add_argument("--check", action="store_true", help="exit code 1 when a floor does not hold")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="relay or events (default relay) with the broker under cProfile",
    )
    chosen = parser.parse_args(argv)
    # A name and its group, both given, are measured once.
    chosen.names = list(dict.fromkeys(one for name in chosen.names for one in GROUPS.get(name, [name])))
    unknown = [name for name in chosen.names if name not in WORKS]
    if unknown:
        parser.error(f"no work {unknown[0]!r}; there are {', '.join(WORKS)}")
    if chosen.quick:
        chosen.rounds, chosen.seconds = 3, 0.4
    return chosen


def measure(names: list[str], bench: works.Bench) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        print(f"{name}: {(WORKS[name].__doc__ or '').splitlines()[0]}", file=sys.stderr, flush=True)
        rows += WORKS[name](bench)
    return rows


def raise_descriptor_limit() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(argv: list[str] | None = None) -> int:
    chosen = arguments(argv)
    if compiler() is None:
        print(
            "benchmarks skipped: no C compiler (CC, cc or gcc) to build the load generator with",
            file=sys.stderr,
        )
        return 0
    if chosen.wheel is not None and not builds.inside():
        return builds.run_from(chosen.wheel, chosen)
    publishes = chosen.page is not None and not chosen.any_load
    try:
        before = load.await_quiet(chosen.wait) if publishes else load.reading()
    except load.Busy as error:
        print(f"benchmark refused: {error}", file=sys.stderr)
        return 1
    load.say("before", before)
    raise_descriptor_limit()
    Crossbar.cache = chosen.cache
    try:
        return run(chosen, before)
    except LoadError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    finally:
        load.say("after (with our own)", load.reading())


def run(chosen: argparse.Namespace, load_before: float) -> int:
    """Measure what was chosen and tell it in every form that was asked for."""
    bench = works.Bench(Loadgen(), Loadgen(WEB_SOURCE), chosen.seconds, chosen.rounds, chosen.payload)
    began = time.monotonic()
    about = circumstances(bench)
    try:
        if chosen.profile:
            return hotspots.run(bench, chosen.names or ["relay"])
        rows = measure(chosen.names or list(WORKS), bench)
    finally:
        bench.loadgen.close()
        bench.web.close()
    about["load"] = {"before": load_before, "after": load.reading()}
    if any(row.target.group == "gateway" for row in rows):
        about["peers"] = [kind.version() for kind in (Nats, Crossbar) if not kind.missing()]
    if any(row.target.group == "oslo" for row in rows):
        about["rabbitmq"] = rabbit.version()
    report.show(rows, report.console())
    report.write(chosen.json, rows, about)
    if chosen.page is not None:
        report.put_into(chosen.page, rows)
    print(f"{time.monotonic() - began:.0f} s; figures in {chosen.json}", file=sys.stderr)
    return 1 if chosen.check and any(row.verdict == "MISSED" for row in rows) else 0


def circumstances(bench: works.Bench) -> dict[str, object]:
    """What a reader of the JSON file has to know besides the rows."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": processes.machine(),
        "rounds": bench.rounds,
        "seconds": bench.seconds,
        "payload_bytes": bench.payload,
        "absent": {
            kind.name: kind.missing()
            for kind in (Headgate, Pure, Flux, Gateway, Nats, RabbitMq)
            if kind.missing()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
