"""The benchmark with a real libflux client: what is read of it and said about it, without measuring."""

import json
from subprocess import CompletedProcess

import pytest

from tests.bench import libflux_works
from tests.bench.libflux_works import BESIDE_STRANGERS, FLAT, LARGE, LARGEST, RATES, RTT, settled
from tests.bench.loadgen import LoadError, outcome
from tests.bench.targets import TARGETS, Row

pytestmark = pytest.mark.tools

CASES = {case.key: case for case in (*RTT, FLAT, BESIDE_STRANGERS, *RATES, LARGEST)}
GOOD = {
    "mode": "ping",
    "window": 1,
    "payload": 0,
    "seconds": 0.5,
    "count": 500,
    "per_s": 1000.0,
    "lost": 0,
    "reordered": 0,
    "refused": 0,
    "wrong": 0,
    "p50_us": 100.0,
    "p99_us": 200.0,
    "cpu_s": [0.1],
    "own_busy": 0.25,
}


def finished(returncode=0, stdout="", stderr=""):
    return CompletedProcess(["libflux"], returncode, stdout, stderr)


def rounds(ours, theirs, figure):
    """What three rounds gave; each of the two is as fast in all of them."""
    return {
        "headgate": [{**GOOD, figure: value} for value in ours],
        "flux-core": [{**GOOD, figure: value} for value in theirs],
    }


def test_a_result_is_read():
    assert outcome(finished(stdout=json.dumps(GOOD) + "\n")) == GOOD


def test_what_is_no_result_is_an_error():
    for done, said in (
        (finished(2, stderr="loadgen: connect local:///x: No such file\n"), "loadgen: connect local:///x"),
        (finished(1, stdout=json.dumps({**GOOD, "wrong": 3})), '"wrong": 3'),
        (finished(-9), "exit code -9"),
        (finished(stdout='{"mode": "ping", "per'), "printed no result"),
        (finished(stdout="[1]"), "printed no result"),
        (finished(), "printed no result"),
    ):
        with pytest.raises(LoadError, match=said):
            outcome(done)


def test_every_row_has_a_case_and_every_case_a_row():
    rows = {key for key, target in TARGETS.items() if target.group == "libflux"}
    assert rows == set(CASES)
    assert all(TARGETS[key].work.endswith("vs flux-core") for key in CASES.keys() - {BESIDE_STRANGERS.key})


def test_times_are_to_be_short_and_rates_high():
    better = {key: "less" if case.figure.endswith("_us") else "more" for key, case in CASES.items()}
    assert {key: TARGETS[key].better for key in CASES} == better


def test_the_verdict_is_about_the_ratio_to_flux_core():
    for key, ours, verdict in (
        ("libflux_rtt_0", 60.0, "aim reached"),
        ("libflux_rtt_0", 80.0, "floor holds"),
        ("libflux_rtt_0", 81.0, "MISSED"),
        ("libflux_rtt_3", 65.0, "floor holds"),
        ("libflux_rtt_3", 138.0, "MISSED"),
        ("libflux_ping_3_64", 340.0, "MISSED"),
        ("libflux_ping_3_64", 350.0, "floor holds"),
        ("libflux_ping_3_64_4k", 300.0, "aim reached"),
        ("libflux_ping_0_64", 250.0, "aim reached"),
        ("libflux_ping_3_256", 248.0, "measured"),
        ("libflux_service_rtt", 85.0, "measured"),
        ("libflux_event", 60.0, "floor holds"),
        ("libflux_large", 149.0, "MISSED"),
    ):
        case = CASES[key]
        row = settled(case, rounds([ours] * 3, [100.0] * 3, case.figure))
        assert (row.value, row.verdict) == (pytest.approx(ours / 100.0), verdict), key


def test_the_ratio_is_taken_within_each_round():
    case = CASES["libflux_ping_3_64"]
    row = settled(case, rounds([200.0, 100.0, 900.0], [100.0, 10.0, 300.0], "per_s"))
    assert row.value == 3.0
    assert row.spread == (2.0, 10.0)


def test_figures_have_the_unit_of_what_is_compared():
    def said(key, **more):
        done = rounds([1500.0], [2500.0], CASES[key].figure)
        done["headgate"][0] |= more
        return settled(CASES[key], done).figures

    assert said("libflux_rtt_3")["headgate"] == "1500 / 200 µs"
    assert said("libflux_ping_3_64")["flux-core"] == "2.5 k/s"
    assert said("libflux_large")["headgate"] == "1500 MB/s"
    assert said("libflux_large", own_busy=0.5)["generator"] == "50% of a core"


def test_megabytes_a_second_count_a_payload_once():
    done = libflux_works.with_throughput({**GOOD, "payload": LARGE, "p50_us": 2.0 * LARGE})
    assert done["mb_per_s"] == 0.5
    assert "mb_per_s" not in libflux_works.with_throughput({"per_s": 1.0})


def test_the_library_is_found_where_distributions_put_it(tmp_path):
    for place in ("lib", "lib64", "lib/x86_64-linux-gnu"):
        prefix = tmp_path / place.replace("/", "-")
        found = prefix / place / "libflux-core.so"
        found.parent.mkdir(parents=True)
        found.touch()
        assert libflux_works.library(prefix) == found
        assert libflux_works.flags(prefix) == [
            f"-I{prefix}/include",
            str(found),
            f"-Wl,-rpath,{found.parent}",
        ]


def test_without_flux_core_each_row_says_why(monkeypatch):
    monkeypatch.delenv("FLUX_PREFIX", raising=False)
    (row,) = libflux_works.libflux_large(None)
    assert row == Row("libflux_large", note="FLUX_PREFIX does not name a flux-core")
    assert row.verdict == "not measured"


def test_without_headers_nothing_is_built(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "flux").touch(mode=0o755)
    monkeypatch.setenv("FLUX_PREFIX", str(tmp_path))
    assert libflux_works.missing() == "FLUX_PREFIX has no include/flux/core.h"
    header = tmp_path / "include" / "flux" / "core.h"
    header.parent.mkdir(parents=True)
    header.touch()
    assert libflux_works.missing() == "FLUX_PREFIX has no libflux-core.so"
