"""One broker under cProfile while the load runs: where does its time go?

The figures are for reading, not for comparing: the profiler costs more than what it watches.
"""

import pstats
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench import works
from tests.bench.contenders import Headgate, single

LINES = 30
RUN = (
    "import cProfile, sys; from broker.cli.main import main; profile = cProfile.Profile()\n"
    "try: profile.runcall(main)\n"
    "except SystemExit: pass\n"
    "finally: profile.dump_stats({stats!r})"
)
OPTIONS: dict[str, dict[str, Any]] = {
    "relay": {"window": works.WINDOW},
    "rtt": {"window": 1},
    "events": {"window": works.WINDOW, "subscribers": works.SUBSCRIBERS},
}


def run(bench: works.Bench, names: list[str]) -> int:
    """Profile each named work; prints the costliest functions."""
    if Headgate.missing():
        print(f"nothing to profile: {Headgate.missing()}", file=sys.stderr)
        return 0
    for name in names:
        if name not in OPTIONS:
            print(f"{name} has no profile; there are {', '.join(OPTIONS)}", file=sys.stderr)
            return 2
        _profile(bench, name)
    return 0


def _profile(bench: works.Bench, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="hgb-", dir="/tmp") as directory:
        stats = Path(directory) / "stats"
        with works.single_broker(bench, lambda rundir: _argv(rundir, stats)) as (_pid, uri):
            result = bench.run("events" if name == "events" else "relay", caller=uri, **OPTIONS[name])
        works.say(f"{name}: {result['per_s']:,.0f}/s under the profiler")
        pstats.Stats(str(stats)).sort_stats("tottime").print_stats(LINES)


def _argv(rundir: Path, stats: Path) -> list[str]:
    """The command of ``single``, run under the profiler."""
    words = single(rundir)
    verb = words[words.index("broker") :]
    code = RUN.format(stats=str(stats))
    return [sys.executable, "-c", code, *verb]
