"""Every gold table once more, in plain Python over lists of dicts: what the tests of tables hold Spark against.

Written from what the tables mean, as a machine that walks the records one by one; nothing of the pipeline is
imported. Rows are dicts without the columns that follow from others (``service``).
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

Row = dict[str, Any]
S = 10**9
WRAP = 0xFFFFFFFF
FINAL = {"COMPLETED", "FAILED", "EXPIRED", "CANCELLED", "JOB NOT FOUND"}
BROKERS = ("child", "parent")
POLICY = (1, 13)


def at(ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)


def day(ns: int) -> date:
    return at(ns).date()


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["rank"], row["run"], row["seq"]))


def endpoints(rows: list[Row]) -> list[Row]:
    """Copies whose origin is filled in where the peer's own requests tell it."""
    best: dict[tuple[Any, ...], tuple[int, int, str]] = {}
    for row in rows:
        if row["type"] == "request" and row["direction"] == "in" and row["origin"] is not None:
            peer = (row["rank"], row["run"], row["peer_id"])
            best[peer] = min(best.get(peer, (99, 0, "")), (row["routes"], row["seq"], row["origin"]))
    filled = []
    for row in in_order(rows):
        known = best.get((row["rank"], row["run"], row["peer_id"]))
        if row["direction"] != "in" and row["origin"] is None and known:
            row = row | {"origin": known[2]}
        filled.append(row)
    return filled


class Call:
    """A request and what came of it."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.came: list[Row] = []
        self.went: list[Row] = []
        self.reused = False

    @property
    def streaming(self) -> bool:
        return bool(self.row["flags"] & 0x40)

    def take(self, row: Row) -> bool:
        """A response; True when it was the last."""
        (self.came if row["direction"] == "in" else self.went).append(row)
        return bool(errnum(row)) or not self.streaming

    @property
    def counted(self) -> list[Row]:
        """Those that came in; of those that went out an errnum that never came in; or all, when nothing came."""
        if not self.came:
            return self.went
        return self.came + [row for row in self.went if errnum(row)]

    @property
    def entered(self) -> bool:
        return self.row["role"] not in BROKERS

    @property
    def unseen(self) -> bool:
        """A built-in service was asked, and what it answers is not recorded."""
        return not self.counted and self.row["via_role"] == "own" and self.row["capture"] == "in"

    @property
    def errnum(self) -> int | None:
        return max((errnum(row) for row in self.came + self.went), default=None)


def errnum(row: Row) -> int:
    """Of a response; or of a request that a built-in service refused, which says the same."""
    return row["reason"] if row["type"] == "request" else row["errnum"]


def matched(rows: list[Row]) -> tuple[list[Call], list[Row]]:
    """All calls, those refused at once among them, and the responses nobody had asked for."""
    calls: list[Call] = []
    orphans: list[Row] = []
    opened: dict[tuple[Any, ...], Call] = {}
    for row in endpoints(rows):
        if row["kind"] != "flux" or row["type"] == "event" or not row["matchtag"]:
            continue
        refused = row["direction"] == "denied" and not row["via_id"]
        if row["origin"] is None and not refused:
            continue
        key = (row["rank"], row["run"], row["origin"], row["matchtag"])
        if row["type"] == "request" and (row["direction"] == "out" or row["flags"] & 0x04):
            continue
        if row["type"] == "request" and (row["direction"] == "in" or refused):
            if key in opened:
                opened.pop(key).reused = True
            calls.append(Call(row))
            if refused:
                calls[-1].take(row)
            else:
                opened[key] = calls[-1]
        elif key in opened:
            if opened[key].take(row):
                del opened[key]
        elif row["direction"] == "in":
            orphans.append(row)
    return calls, orphans


def lasted(call: Call, pick: Callable[[list[int]], int]) -> int | None:
    if not call.counted:
        return None
    return max(0, pick([row["ts_ns"] for row in call.counted]) - call.row["ts_ns"])


def first_latency(call: Call) -> int | None:
    """Until the first response seen at either end: what came in is seen before it goes out."""
    seen = [row["ts_ns"] for row in call.came + call.went]
    return max(0, min(seen) - call.row["ts_ns"]) if seen else None


def rpc(rows: list[Row]) -> list[Row]:
    return [
        {
            "req_ts": at(call.row["ts_ns"]),
            **{name: call.row[name] for name in ("ts_ns", "rank", "origin", "matchtag", "topic", "userid")},
            "lat_ns": first_latency(call),
            "last_ns": lasted(call, max),
            "errnum": call.errnum,
            "n_responses": len(call.counted),
            "streaming": call.streaming,
            "outcome": outcome(call),
            "dt": day(call.row["ts_ns"]),
        }
        for call in matched(rows)[0]
        if call.entered
    ]


def outcome(call: Call) -> str:
    if call.counted:
        return "answered"
    return "not captured" if call.unseen else "reused" if call.reused else "unanswered"


def bucket_end(ns: int) -> int:
    return ns | ((1 << max(0, ns.bit_length() - 5)) - 1)


def rpc_latency(rows: list[Row]) -> list[Row]:
    latencies: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    counts: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)

    def count(row: Row, why: str, latency: int | None = None) -> None:
        end = None if latency is None else bucket_end(latency)
        place = (row["ts_ns"] // (60 * S), row["rank"], row["topic"], end)
        counts[place][why] += 1
        if latency is not None:
            latencies[place].append(latency)

    calls, orphans = matched(rows)
    for call in calls:
        if call.entered:
            cut = call.reused and not call.unseen
            said = {"not captured": "not_captured", "unanswered": "unmatched_no_response"}.get(
                outcome(call), ""
            )
            count(call.row, "reused_tags" if cut else said, first_latency(call))
    for row in orphans:
        if row["via_role"] not in BROKERS:
            count(row, "unmatched_no_request")
    for row in rows:
        if row["type"] == "request" and row["direction"] == "in" and row["role"] not in BROKERS:
            if row["flags"] & 0x04:
                count(row, "unmatched_noresponse")
            elif not row["matchtag"] or row["origin"] is None:
                count(row, "unmatched_untagged")
    return [
        {
            "window": at(place[0] * 60 * S),
            **dict(zip(("rank", "topic", "le_ns"), place[1:], strict=True)),
            "n": len(latencies[place]),
            "sum_ns": sum(latencies[place]),
            "max_ns": max(latencies[place], default=None),
            **{why: counts[place][why] for why in WHYS},
            "dt": day(place[0] * 60 * S),
        }
        for place in counts
    ]


WHYS = (
    "unmatched_no_response", "not_captured", "unmatched_no_request", "unmatched_noresponse", "unmatched_untagged",
    "reused_tags",
)  # fmt: skip


def tree_latency(rows: list[Row]) -> list[Row]:
    took: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for call in matched(rows)[0]:
        latency, row = first_latency(call), call.row
        if latency is not None and row["direction"] == "in":
            ends = (
                row["peer"] if row["role"] in BROKERS else row["role"],
                row["via"] if row["via_role"] in BROKERS else row["via_role"],
            )
            took[row["ts_ns"] // (60 * S), row["rank"], *ends, row["topic"]].append(latency)
    return [
        {
            "window": at(window * 60 * S),
            **dict(zip(("rank", "source", "target", "topic"), rest, strict=True)),
            "n": len(each),
            "sum_ns": sum(each),
            "max_ns": max(each),
            "dt": day(window * 60 * S),
        }
        for (window, *rest), each in took.items()
    ]


def passes_on(row: Row) -> bool:
    """From one broker of the tree to another."""
    return row["kind"] == "flux" and row["direction"] != "denied" and row["role"] in BROKERS


def summed(rows: list[Row], names: tuple[str, ...]) -> list[Row]:
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        total = sums[(row["ts_ns"] // (10 * S), *(row[name] for name in names))]
        for place, value in enumerate((1, row["payload_len"], row["wire_len"])):
            total[place] += value
    return [
        {
            "window": at(window * 10 * S),
            **dict(zip(names, rest, strict=True)),
            **dict(zip(("n", "payload_bytes", "wire_bytes"), total, strict=True)),
            "dt": day(window * 10 * S),
        }
        for (window, *rest), total in sums.items()
    ]


def refused_inside(row: Row) -> bool:
    """It had come in, here or at another broker, before it was refused."""
    inside = row["role"] in BROKERS or (row["via_id"] and row["role"] != "web")
    return bool(row["kind"] == "flux" and row["direction"] == "denied" and inside)


def traffic(rows: list[Row]) -> list[Row]:
    names = ("rank", "writer", "transport", "direction", "kind", "topic", "type", "userid")
    return summed([row for row in rows if not passes_on(row) and not refused_inside(row)], names)


def deliveries(rows: list[Row]) -> list[Row]:
    sums: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row["type"] == "event" and row["direction"] == "out":
            up = row["role"] in BROKERS
            brokers = row["delivered"] if up else 0 if row["claimed"] == WRAP else row["claimed"]
            clients = row["delivered"] - brokers
            place = sums[row["ts_ns"] // (10 * S), row["rank"], row["topic"], row["userid"]]
            place.update(events=1, n=clients, payload_bytes=clients * row["payload_len"])
            place.update(
                wire_bytes=clients * row["wire_len"],
                tree_n=brokers,
                tree_wire_bytes=brokers * row["wire_len"],
            )
    names = ("events", "n", "payload_bytes", "wire_bytes", "tree_n", "tree_wire_bytes")
    return [
        {
            "window": at(window * 10 * S),
            **dict(zip(("rank", "topic", "userid"), rest, strict=True)),
            **{name: place[name] for name in names},
            "dt": day(window * 10 * S),
        }
        for (window, *rest), place in sums.items()
    ]


def tree_traffic(rows: list[Row]) -> list[Row]:
    named = [row | {"service": row["topic"].partition(".")[0]} for row in rows if passes_on(row)]
    return summed(named, ("rank", "peer", "role", "direction", "type", "service"))


def refusals(rows: list[Row]) -> list[tuple[Row, Row]]:
    """(record, what it says of whom)."""
    table = []
    for row in rows:
        kept = {name: row[name] for name in ("ts", "rank", "transport", "claimed", "rolemask", "dt")}
        if row["direction"] == "denied":
            kind = "web" if row["transport"] == "websocket" else "request"
            same = {name: row[name] for name in ("peer", "userid", "topic")}
            table.append((row, kept | same | {"errno": row["reason"], "kind": kind}))
        elif row["kind"] == "state" and row["topic"] == "denied.link":
            facts = json.loads(row["detail"])
            who = {"peer": facts["address"], "userid": facts["uid"], "topic": None}
            table.append((row, kept | who | {"errno": facts["errno"], "kind": "link"}))
    return table


def denied(rows: list[Row]) -> list[Row]:
    table = [said for _, said in refusals(rows) if said["errno"] in POLICY]
    asked = {
        (row["rank"], row["run"], row["seq"]): call.row for call in matched(rows)[0] for row in call.came
    }
    for row in rows:
        if row["direction"] == "in" and row["errnum"] in POLICY and row["role"] not in BROKERS:
            kept = {name: row[name] for name in ("ts", "rank", "transport", "topic", "dt")}
            call = asked.get((row["rank"], row["run"], row["seq"]), {})
            kept |= {"claimed": None, "rolemask": None, "userid": call.get("userid")}
            if call:
                kept["topic"] = call["topic"]
            table.append(kept | {"peer": row["via"], "errno": row["errnum"], "kind": "answer"})
    return table


def errors(rows: list[Row]) -> list[Row]:
    found = [
        (row["ts_ns"], row["rank"], row["topic"], min(call.errnum, 2**31 - 1), "answer", row["userid"])
        for call in matched(rows)[0]
        if (row := call.row)["direction"] == "in" and call.entered
        if call.counted and call.errnum and not (call.streaming and call.errnum == 61)
    ]
    for row, said in refusals(rows):
        call = (
            row["type"] == "request"
            and row["matchtag"]
            and row["origin"] is not None
            and not row["flags"] & 0x04
        )
        own_client = not row["via_id"] and row["role"] not in BROKERS
        notice = (said["topic"] or "").endswith(".disconnect")
        if (own_client or not call) and not notice:
            found.append(
                (row["ts_ns"], row["rank"], *(said[name] for name in ("topic", "errno", "kind", "userid")))
            )
    counts = Counter((ns // (60 * S), *rest) for ns, *rest in found if rest[2] not in POLICY)
    return [
        {
            "window": at(window * 60 * S),
            **dict(zip(("rank", "topic", "errno", "kind", "userid"), rest, strict=True)),
            "n": n,
            "dt": day(window * 60 * S),
        }
        for (window, *rest), n in counts.items()
    ]


def event_gaps(rows: list[Row]) -> list[Row]:
    last: dict[tuple[Any, ...], int] = {}
    table = []
    for row in in_order(rows):
        if row["type"] != "event" or row["direction"] != "in" or not row["event_seq"]:
            continue
        stream = (row["rank"], row["run"], row["peer_id"] if row["rank"] else None)
        before, now = last.get(stream), row["event_seq"]
        last[stream] = now
        if before is None or now == before % WRAP + 1:
            continue
        forward = now - before if now > before else now - before + WRAP
        kind = "duplicate" if now == before else "gap" if forward <= WRAP // 2 else "reorder"
        table.append(
            {
                **{name: row[name] for name in ("rank", "writer", "run", "peer")},
                "prev_seq": before,
                "next_seq": now,
                "missing": forward - 1 if kind == "gap" else 0,
                "kind": kind,
                "ts": row["ts"],
                "dt": row["dt"],
            }
        )
    return table


def order_check(rows: list[Row]) -> list[Row]:
    rows = [row for row in endpoints(rows) if row["kind"] == "flux" and row["direction"] != "denied"]
    both = {(row["rank"], row["run"]) for row in rows if row["direction"] == "out"}
    sides: dict[str, dict[tuple[Any, ...], list[Row]]] = {"in": defaultdict(list), "out": defaultdict(list)}
    names: dict[tuple[Any, ...], str | None] = {}
    for row in rows:
        event, came = row["type"] == "event", row["direction"] == "in"
        if (event and not row["event_seq"]) or (not event and row["origin"] is None):
            continue
        place = 0 if event else row["via_id"] if came else row["peer_id"]
        pair = (row["rank"], row["run"], None if event else row["origin"], place, row["type"])
        if (row["rank"], row["run"]) not in both:
            continue
        sides[row["direction"]][pair].append(row)
        if came:
            names[pair] = None if event else row["via"]
    table = []
    for pair, arrived in sides["in"].items():
        waiting: dict[Any, list[int]] = defaultdict(list)
        for place, row in enumerate(arrived):
            waiting[identity(row)].append(place)
        highest, done = -1, set()
        late = set()
        for row in sides["out"][pair]:
            if not waiting[identity(row)]:
                continue
            place = waiting[identity(row)].pop(0)
            done.add(place)
            if place < highest:
                late.add(place)
            highest = max(highest, place)
        for dt in {row["dt"] for row in arrived}:
            today = [place for place, row in enumerate(arrived) if row["dt"] == dt]
            times = [arrived[place]["ts"] for place in today]
            table.append(
                {
                    **dict(zip(("rank", "run", "origin"), pair, strict=False)),
                    "peer": names[pair],
                    "type": pair[4],
                    "n": len(today),
                    "out_of_order": len(late.intersection(today)),
                    "missing": len(set(today) - done),
                    "first_ts": min(times),
                    "last_ts": max(times),
                    "dt": dt,
                }
            )
    return table


def identity(row: Row) -> Any:
    word = next((row[name] for name in ("nodeid", "errnum", "event_seq") if row[name] is not None), None)
    return word, row["topic"], None if row["type"] == "event" else row["matchtag"]


def user_usage(rows: list[Row]) -> list[Row]:
    fields = ("requests", "responses", "events", "denied", "errors", "payload_bytes", "wire_bytes", "rpc_ns")
    sums: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row["direction"] == "in" and not passes_on(row):
            who = sums[row["dt"], row["userid"]]
            who["payload_bytes"] += row["payload_len"]
            who["wire_bytes"] += row["wire_len"]
            if row["kind"] == "flux":
                who[row["type"] + "s"] += 1
    for row in denied(rows):
        sums[row["dt"], row["userid"]]["denied"] += 1
    for row in errors(rows):
        sums[row["dt"], row["userid"]]["errors"] += row["n"]
    for call in rpc(rows):
        if call["lat_ns"] is not None:
            sums[call["dt"], call["userid"]]["rpc_ns"] += call["lat_ns"]
    return [
        {"dt": dt, "userid": userid, **{name: who[name] for name in fields}}
        for (dt, userid), who in sums.items()
        if userid is not None
    ]


def job_outcomes(rows: list[Row]) -> list[Row]:
    jobs: dict[str, list[tuple[Row, Row]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["ts_ns"], row["writer"], row["seq"])):
        if row["kind"] == "nfp" and (facts := json.loads(row["detail"])).get("uuid"):
            jobs[facts["uuid"]].append((row, facts))
    table = []
    for uuid, seen in jobs.items():

        def said(name: str, seen: list[tuple[Row, Row]] = seen) -> list[Any]:
            return [facts[name] for _, facts in seen if name in facts]

        began = seen[0][0]["ts_ns"]
        ended = [row["ts_ns"] for row, facts in seen if facts.get("status") in FINAL]
        table.append(
            {
                "uuid": uuid,
                **{name: next(iter(said(name)), None) for name in ("service", "task", "client")},
                "status": (said("status") or [None])[-1],
                "attempts": max(said("attempt"), default=1),
                "workers": len(set(said("worker"))),
                "t_submit": at(began),
                "t_done": at(ended[0]) if ended else None,
                "duration_ns": ended[0] - began if ended else None,
                "dt": day(began),
            }
        )
    return table


def notifications(rows: list[Row]) -> list[Row]:
    table = []
    for row in rows:
        facts = json.loads(row["detail"]) if row["kind"] == "oslo" and row["direction"] == "in" else {}
        if facts.get("what") == "notification":
            said = {
                name: facts.get(name)
                for name in ("exchange", "topic", "event_type", "priority", "publisher_id")
            }
            table.append({"ts": row["ts"], **said, "payload_len": row["payload_len"], "dt": row["dt"]})
    return table


def slow(rows: list[Row]) -> list[Row]:
    table = []
    for row in rows:
        facts = json.loads(row["detail"]) if row["kind"] == "state" else {}
        named = row["peer"] if row["peer_id"] else facts.get("peer")
        if row["topic"] == "drop":
            found = ("drop", facts["events"], named, facts.get("reason"))
        elif row["topic"] == "link.down" and facts.get("discarded"):
            found = ("discarded", facts["discarded"], named, facts["reason"])
        elif row["topic"] == "gap":
            found = ("shed", facts["records"], row["writer"], facts["cause"])
        else:
            continue
        values = dict(zip(("what", "events", "peer", "reason"), found, strict=True))
        table.append({"ts": row["ts"], "rank": row["rank"], **values, "bytes": None, "dt": row["dt"]})
    return table


TABLES: dict[str, Callable[[list[Row]], list[Row]]] = {
    build.__name__: build
    for build in (
        traffic, deliveries, tree_traffic, rpc, rpc_latency, tree_latency, denied, errors, event_gaps, order_check,
        user_usage, job_outcomes, notifications, slow,
    )
}  # fmt: skip
