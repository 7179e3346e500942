"""Floor and aim of each row, and the verdict on what was measured."""

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

Verdict = Literal["aim reached", "floor holds", "MISSED", "measured", "not measured"]
Group = Literal["broker", "libflux", "gateway", "nfp", "oslo", "journal", "spark"]


@dataclass(frozen=True)
class Target:
    """What a row must reach (floor) and what it tries to (aim; None where there is only a floor).

    Attributes:
        floor: None where nothing is asked: the figure is there to be seen. group: in which table it stands.
    """

    work: str
    unit: str
    floor: float | None
    aim: float | None
    better: Literal["more", "less"]
    group: Group = "broker"

    def holds(self, value: float, bound: float) -> bool:
        return value >= bound if self.better == "more" else value <= bound


def _libflux(
    work: str,
    floor: float | None = None,
    aim: float | None = None,
    better: Literal["more", "less"] = "more",
) -> Target:
    return Target(f"{work}, vs flux-core", "x", floor, aim, better, "libflux")


def _web(
    work: str,
    unit: str = "x",
    floor: float | None = None,
    aim: float | None = None,
    better: Literal["more", "less"] = "more",
) -> Target:
    return Target(work, unit, floor, aim, better, "gateway")


def _nfp(
    work: str, unit: str, floor: float, better: Literal["more", "less"] = "less", aim: float | None = None
) -> Target:
    return Target(work, unit, floor, aim, better, "nfp")


def _oslo(
    work: str,
    floor: float | None = None,
    aim: float | None = None,
    better: Literal["more", "less"] = "more",
    unit: str = "x",
) -> Target:
    return Target(work, unit, floor, aim, better, "oslo")


def _journal(work: str, floor: float | None = None, unit: str = "µs") -> Target:
    return Target(work, unit, floor, None, "less", "journal")


def _spark(
    work: str,
    unit: str,
    floor: float | None = None,
    aim: float | None = None,
    better: Literal["more", "less"] = "less",
) -> Target:
    return Target(work, unit, floor, aim, better, "spark")


PEERS = {"nats": "nats-server", "crossbar": "crossbar", "nats_pure": "nats-server, pure Python"}

TARGETS = {
    "relay_vs_flux": Target("client→service→client relay, window 128, vs flux-core", "x", 9, 10, "more"),
    "relay_cpu": Target("the same: broker CPU per message", "µs", 3.5, 2, "less"),
    "relay_vs_flux_pure": Target("relay, pure Python, vs flux-core", "x", 5, 10, "more"),
    "relay_cpu_pure": Target("the same: broker CPU per message", "µs", 3.5, 2, "less"),
    "counting_p50": Target("RTT at window 1 with figures by method, vs without", "x", 1.02, None, "less"),
    "events_kept": Target("events to 32 subscribers, the last ones kept, vs none", "x", 0.98, None, "more"),
    "web_kept": _web("events to 50 WebSocket subscribers, the last ones kept, vs none", "x", 0.98),
    "guard_outlet": Target("a line of the log, by a StreamHandler's: CPU", "x", None, None, "less"),
    "guard_trust": Target("dialling a local socket, by a plain connect: CPU", "x", None, None, "less"),
    "guard_filter": Target("an event to a WebSocket with a hook, by without: CPU", "x", None, None, "less"),
    "rtt_vs_relay": Target("RTT at window 1, same relay, vs byte relay", "x", 1.3, 1.1, "less"),
    "rtt_vs_flux": Target("the same, vs flux-core", "x", 0.83, 0.67, "less"),
    "events_vs_flux": Target("events to 32 subscribers, vs flux-core", "x", 3, 6, "more"),
    "rpc_vs_flux": Target(
        "cross-rank RPC over CURVE, 0→3 of 4, window 128, vs flux-core", "x", 8, 10, "more"
    ),
    "rpc_vs_flux_pure": Target("cross-rank RPC, pure Python, vs flux-core", "x", 5, 10, "more"),
    "idle_rss": Target("idle broker: resident memory", "MiB", 40, 30, "less"),
    "idle_cpu": Target("idle broker: CPU", "%", 0.5, None, "less"),
    "idle_connection": Target("idle UNIX client connection: resident memory", "KiB", 8, None, "less"),
    "start_one": Target("start to ready, one broker", "s", 0.3, None, "less"),
    "start_four": Target("start to ready, start --size 4", "s", 1.0, None, "less"),
    "tree_hops": Target(
        "simulated tree of 131 072 ranks: hops beyond the tree's depth", "hops", 0, None, "less"
    ),
    "tree_flat": Target("the same: cost per hop, deepest rank vs depth 2", "x", 1.5, None, "less"),
    "libflux_rtt_0": _libflux("broker.ping of rank 0, one at a time, p50 / p99", 0.8, 0.65, "less"),
    "libflux_rtt_3": _libflux("the same of rank 3, two hops away", 0.65, 0.5, "less"),
    "libflux_rtt_flat": _libflux("the same, both trees flat: one hop", 0.75, 0.6, "less"),
    "libflux_strangers": Target(
        "broker.ping of rank 3 beside 10 000 strangers a second at rank 0, p99",
        "ms",
        50,
        20,
        "less",
        "libflux",
    ),
    "libflux_ping_3_64": _libflux("broker.ping of rank 3, 64 in flight, no payload", 3.5, 5),
    "libflux_ping_3_256": _libflux("the same, 256 in flight"),
    "libflux_ping_3_64_4k": _libflux("broker.ping of rank 3, 64 in flight, 4 KiB", 1.6, 2.5),
    "libflux_ping_3_256_4k": _libflux("the same, 256 in flight", 1.5, 2.5),
    "libflux_ping_0_64": _libflux("broker.ping of rank 0, 64 in flight, no payload", 2, 2.5),
    "libflux_service_rtt": _libflux("service of another client, one at a time, p50 / p99", better="less"),
    "libflux_service_64": _libflux("service of another client, 64 in flight, 1 B"),
    "libflux_service_64_4k": _libflux("the same, 4 KiB"),
    "libflux_event": _libflux("event from rank 3 to rank 2, one at a time, p50 / p99", 0.6, 0.45, "less"),
    "libflux_large": _libflux("16 MiB to a service at rank 3 and back, one at a time", 1.5, 2),
    **{
        f"web_fanout_{count}_vs_{peer}": _web(f"events to {count} WebSocket subscribers, vs {text}")
        for count in (1, 50)
        for peer, text in PEERS.items()
    },
    "web_fanout_vs_nats": _web("events to 500 WebSocket subscribers, vs nats-server", "x", 0.8, 1.2),
    "web_fanout_vs_crossbar": _web("the same, vs crossbar", "x", 8),
    "web_fanout_vs_nats_pure": _web("the same, pure Python, vs nats-server", "x", 0.8, 1.2),
    "web_rpc_vs_nats": _web("RPC of WebSocket clients, provider beside, vs nats-server", "x", 0.4, 0.7),
    "web_rpc_vs_crossbar": _web("the same, vs crossbar", "x", 4),
    "web_rpc_vs_nats_pure": _web("the same, pure Python, vs nats-server", "x", 0.4, 0.7),
    "web_rpc_web_vs_nats": _web("RPC between WebSocket clients, vs nats-server", "x", 0.4, 0.7),
    "web_rpc_web_vs_crossbar": _web("the same, vs crossbar", "x", 4),
    "web_rpc_web_vs_nats_pure": _web("the same, pure Python, vs nats-server", "x", 0.4, 0.7),
    "web_rtt": _web(
        "RPC of a WebSocket client, one at a time, p50 / p99, vs nats-server", "x", 1.2, 1.0, "less"
    ),
    "web_http_vs_ws": _web("a call over HTTP vs one over WebSocket: CPU, both ends", "x", 3, None, "less"),
    "web_http_vs_aiohttp": _web("the same vs an aiohttp handler alone, pure Python", better="less"),
    "web_pace": _web("500 subscribers at 10 events/s: p50 / p99, the figure is p99", "ms", 20, None, "less"),
    "web_stalled": _web("one of 500 stopped reading: what the others get, vs none did", "x", 0.9),
    "web_idle_connection": _web("idle WebSocket connection: resident memory", "KiB", 20, None, "less"),
    "web_idle_hold": _web("10 000 idle dashboards: lost, unpinged or deaf", "of them", 0, None, "less"),
    "web_deflate_bytes": _web(
        "events of 1 KiB of JSON to 50 subscribers: bytes, compressed vs plain", better="less"
    ),
    "web_deflate_cpu": _web("the same: CPU of the gateway a delivery", better="less"),
    "web_storm": _web(
        "10 000 clients of a gateway that was killed, back at another: p99", "s", 20, 10, "less"
    ),
    "nfp_cpu_200": _nfp("broker CPU a job, 200 B, store off, same pyzmq, vs NorFab's broker", "x", 1.0),
    "nfp_cpu_200_stored": _nfp("the same, store on", "x", 1.5),
    "nfp_cpu_64k": _nfp("broker CPU a job, 64 KiB, store off, same pyzmq, vs NorFab's broker", "x", 0.8),
    "nfp_cpu_64k_stored": _nfp("the same, store on", "x", 1.0),
    "nfp_cpu_200_pinned": _nfp("broker CPU a job, 200 B, store off, each with its own pyzmq", "x", 1.0),
    "nfp_cpu_64k_pinned": _nfp("broker CPU a job, 64 KiB, store off, each with its own pyzmq", "x", 0.8),
    "nfp_jobs": _nfp(
        "jobs/s of the same raw peers, 16 in flight, store off, vs NorFab's broker", "x", 1.0, "more"
    ),
    "nfp_jobs_stored": _nfp("the same, store on", "x", 1.0, "more"),
    "nfp_whole_sequence": _nfp(
        "own client, broker, worker, stored, a job after the other, vs NorFab", "x", 3, "more"
    ),
    "nfp_whole_many": _nfp("the same, 200 jobs at once", "x", 5, "more"),
    "nfp_norfab_sequence": _nfp(
        "NorFab's client and worker, a job after the other, store on, vs its broker", "x", 1.0, "more"
    ),
    "nfp_norfab_clients": _nfp("the same, four clients", "x", 0.9, "more"),
    "nfp_norfab_many": _nfp("the same, 100 jobs at once", "x", 1.0, "more"),
    "nfp_norfab_many_cpu": _nfp("the same: broker CPU a job", "x", 1.3),
    "nfp_norfab_many_cpu_off": _nfp("the same, store off", "x", 1.0),
    "nfp_crowd_1000": _nfp("round trip with 1 000 registered workers, vs 10", "x", 1.15),
    "nfp_crowd_5000": _nfp("round trip with 5 000 registered workers, vs 10", "x", 1.15),
    "nfp_restart": _nfp("broker killed and started: until a job runs again", "s", 1.0),
    "nfp_killed": _nfp("the same with 200 jobs in flight: lost or failed", "jobs", 0),
    "journal_cpu_in": _journal("broker CPU above capture off, a relayed message, capture = in", 0.5),
    "journal_share_in": _journal("the same, of the relay's CPU", unit="%"),
    "journal_cpu_both": _journal("broker CPU above capture off, a relayed message, capture = both", 0.9),
    "journal_share_both": _journal("the same, of the relay's CPU", unit="%"),
    "journal_writer": _journal("the writer's CPU, a record", 1.0),
    "journal_decode": _journal("decoding all columns, CRC checked, vs a plain read() of the bytes", unit="x"),
    "journal_decode_rate": Target("the same: rows a second and core", "M/s", 8, None, "more", "journal"),
    "spark_batch": _spark(
        "pipeline batch of 75 000 rows of mixed sessions, journal to tables, cold", "s", 20, 10
    ),
    "spark_batch_warm": _spark("the same in a session that has done it before", "s", 10, 5),
    "spark_tables": _spark(
        "pipeline batch of 3.2 million messages, all gold tables, cold: rows a second", "k/s", 40, 80, "more"
    ),
    "spark_cpu": _spark(
        "CPU a row of four of them, vs a plain script of Spark that makes the same", "x", 1.5, 1.1
    ),
    "spark_ingest": _spark("segments to bronze, a second and core", "M/s", 0.15, 0.3, "more"),
    "spark_decode": _spark(
        "decoding for the data source, all columns, a second and core", "M/s", 0.6, 1, "more"
    ),
    "spark_decode_four": _spark("the same: four columns", "M/s", 3.7, 5, "more"),
    "pipeline_rows": _spark("CPU a row, journal to tables, of the largest day vs the smallest", "x", 1.2),
    "spark_freshness": _spark("stream: from capture to bronze at 20 000 messages/s", "s", 3, 1.5),
    "spark_gold": _spark("the same: from capture to the gold tables", "s", 30, 15),
    "spark_scaling": _spark("ingest of a day with two workers of a cluster, vs one", "x", 1.6, 1.9, "more"),
    "spark_scaling_gold": _spark("the same: batch", "x", 1.6, 1.9, "more"),
    "oslo_calls_1": _oslo("calls by one thread, vs rabbit://", 3),
    "oslo_calls_16": _oslo("calls by 16 threads, vs rabbit://", 5.5),
    "oslo_rtt": _oslo("a call's round trip, p50 / p99; the figure is p50, vs rabbit://", better="less"),
    "oslo_rtt_raw": _oslo(
        "the same, vs pyzmq alone (DEALER, ROUTER/ROUTER, DEALER) and oslo.messaging's own part (fake:) together",
        1.5,
        None,
        "less",
    ),
    "oslo_cast": _oslo("casts delivered to one server, vs rabbit://", 6.5),
    "oslo_cast_send": _oslo("the same: until a cast returns, vs rabbit://", better="less"),
    "oslo_fanout": _oslo("fan-outs delivered, 8 servers in 2 processes, vs rabbit://", 5),
    "oslo_fanout_send": _oslo("the same: until a fan-out returns, vs rabbit://", better="less"),
    "oslo_notify": _oslo("notifications delivered, vs rabbit://", 6.9),
    "oslo_width_send": _oslo("fan-out to 32 servers of a node: CPU of sending it, vs 1", 1.25, None, "less"),
    "oslo_width_bytes": _oslo("the same: TCP bytes into the node, vs 1", 1.05, None, "less"),
    "oslo_crowd_ready": _oslo(
        "1 000 servers begin on 20 nodes: until a client knows all", better="less", unit="s"
    ),
    "oslo_crowd_found": _oslo("the same: a client that comes later knows all", better="less", unit="s"),
    "oslo_crowd_wrong": _oslo(
        "1 000 calls, 1 000 casts: servers that had not exactly one", 0, None, "less", "servers"
    ),
    "oslo_crowd_memory": _oslo("the same: resident memory of a server", better="less", unit="KiB"),
}


@dataclass
class Row:
    """One line of the table.

    Attributes:
        value: the figure that the target is about; None when it was not measured, and ``note`` says why.
        spread: lowest and highest value over the rounds.
        figures: what each contender did, for the reader: name -> text.
        raw: everything behind it, for the JSON file.
    """

    key: str
    value: float | None = None
    spread: tuple[float, float] | None = None
    figures: dict[str, str] = field(default_factory=dict)
    note: str = ""
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> Target:
        return TARGETS[self.key]

    @property
    def verdict(self) -> Verdict:
        target = self.target
        if self.value is None:
            return "not measured"
        if target.floor is None:
            return "measured"
        if not target.holds(self.value, target.floor):
            return "MISSED"
        return "aim reached" if target.aim is None or target.holds(self.value, target.aim) else "floor holds"

    @property
    def share(self) -> float:
        """How much of the aim (or of the only bound) is reached: 1 is all of it."""
        bound = self.target.floor if self.target.aim is None else self.target.aim
        if self.value is None or bound is None:
            return 0.0
        if self.target.better == "more":
            return self.value / bound
        return bound / self.value if self.value else 1.0

    def settle(self, values: list[float]) -> None:
        """Take the median of what the rounds gave."""
        if values:
            self.value = median(values)
            self.spread = (min(values), max(values))

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), **asdict(self.target), "verdict": self.verdict}
