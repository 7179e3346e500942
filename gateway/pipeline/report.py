"""The history as one page: no program, no file beside it, light and dark as the system has it. Read through pyarrow.

What it shows is what the dashboard's *History* shows, from the same answers (``gateway.history``); times are in UTC.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final, NamedTuple

from broker import __version__, atomic
from gateway.history.charts import FINE_S, Line, bounds, chart, moment
from gateway.history.files import Budget
from gateway.history.reader import QUESTIONS, Question, TooWide, answer
from gateway.history.scope import DAY_S, LEAST_S, Scope
from gateway.history.tables import Warehouse
from gateway.pipeline.picture import drawn
from gateway.pipeline.reportlines import PERCENTILES, latency_lines, stacked_lines, traffic_lines, verdict
from gateway.pipeline.reportstyle import STYLE
from gateway.pipeline.reportwords import (
    BRIEF,
    BRIEF_TOPIC,
    NOT_SAID,
    age,
    brief,
    duration,
    error,
    mark,
    rate,
    short,
    size,
    span,
    text,
    user,
)

SECONDS: Final = 120.0
"""How long each question of a report may read: nobody waits for a page."""
DAYS_MAX: Final = 36600
"""The longest report: a century, all there can be."""
ROWS: Final = 15

Answer = dict[str, Any]


def read(
    warehouse: str, *, since: float | None = None, until: float | None = None, days: float = 7
) -> dict[str, Answer]:
    """The answers to all questions.

    Args:
        warehouse: directory of the tables.
        since: first second since 1970; None: where the data begins, at most ``days`` before the end.
        until: the end, not included; None: the end of the data.
        days: how much is shown when ``since`` is not said.

    Raises:
        HeadgateError: no pyarrow, no warehouse, or bounds that make no sense.
    """
    house = Warehouse(warehouse)
    house.check()
    now = int(time.time()) + 1
    extent = house.extent() or (now - LEAST_S, now)
    if since is None and until is not None:
        since = max(0.0, until - days * DAY_S, min(float(extent[0]), until - 1))
    try:
        scope = Scope.of(since, until, extent, seconds=days * DAY_S)
    except ValueError as wrong:
        raise TooWide(str(wrong)) from None
    return {
        name: answer(
            house,
            Question(name, scope.since, scope.until),
            max_days=DAYS_MAX,
            budget=Budget(seconds=SECONDS),
        )
        for name in QUESTIONS
    }


def write(
    warehouse: str,
    output: str | None,
    *,
    picture: str | None = None,
    since: float | None = None,
    until: float | None = None,
    days: float = 7,
) -> Answer:
    """Write the page to ``output`` and a picture to ``picture`` (in place of what is there); return the summary.

    Args:
        warehouse: directory of the tables.
        output: HTML file; None: no page.
        picture: SVG file (``gateway.pipeline.picture``); None: no picture.
        since: as of ``read``.
        until: as of ``read``.
        days: as of ``read``.

    Raises:
        HeadgateError: as of ``read``.
        OSError: a file cannot be written.
    """
    answers = read(warehouse, since=since, until=until, days=days)
    if output is not None:
        atomic.write(output, page(answers).encode())  # 0600: it names users, topics and sizes of everybody
    if picture is not None:
        atomic.write(picture, drawn(answers).encode())
    return answers["summary"]


# ---------------------------------------------------------------- the page


def page(answers: dict[str, Answer]) -> str:
    """The answers of all questions as HTML."""
    blocks = (
        _traffic(answers["traffic"], answers["tree"]),
        _latency(answers["latency"]),
        _talkers(answers["talkers"]),
        _errors(answers["errors"]),
        _denied(answers["denied"]),
        _order(answers["order"]),
        _slow(answers["slow"]),
        _jobs(answers["jobs"]),
        _notifications(answers["notifications"]),
        _runs(answers["summary"]),
    )
    summary = answers["summary"]
    title = f"Headgate history, {bounds(summary)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>Headgate history</h1><p>{_head(answers)}</p></header>\n"
        f"{_sums(summary)}\n<main>\n{''.join(blocks)}</main>\n"
        f"<footer>headgate {escape(__version__)} · written {moment(time.time())} UTC</footer>\n</body>\n</html>\n"
    )


def _head(answers: dict[str, Answer]) -> str:
    summary = answers["summary"]
    fresh = summary["fresh_s"]
    ran = (
        "the pipeline has not run yet"
        if fresh is None
        else f"the pipeline ran {age(fresh)} before this page was made"
    )
    facts = [bounds(summary), ran]
    spent = sorted({each["truncated"] for each in answers.values() if each["truncated"]})
    if spent:
        facts.append(f"not all was read, the newest only (limit of {', '.join(spent)})")
    damaged = sorted({name for each in answers.values() for name in each["damaged"]})
    if damaged:
        facts.append(f"not readable: {', '.join(damaged)}")
    return " · ".join(map(escape, facts))


def _sums(summary: Answer) -> str:
    pairs = {
        "messages": short(summary["messages"]), "on the wire": size(summary["wire_bytes"]),
        "payload": size(summary["payload_bytes"]), "errors": short(summary["errors"]),
        "services": str(len(summary["services"])), "ranks": str(len(summary["ranks"])),
    }  # fmt: skip
    return (
        "<dl>"
        + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs.items())
        + "</dl>"
    )


def _traffic(answer: Answer, tree: Answer) -> str:
    note = f"messages/s in, {span(answer['step_s'])} a step"
    columns: Columns = {
        "from": _key("from"), "to": lambda row: SERVED.get(row["to"], text(row["to"])),
        "calls": lambda row: short(row["n"]), "mean": _ns("mean_ns"),
        "share": lambda row: NOT_SAID if row["share"] is None else f"{row['share']:.0%}",
    }  # fmt: skip
    return _block(
        _chart("Traffic", note, answer, traffic_lines(answer), rate, "No messages in this time."),
        _table("Where in the tree the time goes", columns, tree["steps"], "No answered calls in this time."),
    )


def _latency(answer: Answer) -> str:
    note = f"until the first answer; {duration(0)}: recorded together with it"
    columns: Columns = {
        "topic": _name("topic"), "calls": lambda row: short(row["n"]),
        **{name: _ns(key) for key, name, _ in PERCENTILES},
        "unanswered": lambda row: short(row["unmatched_no_response"]),
        "not captured": lambda row: short(row["not_captured"]),
    }  # fmt: skip
    empty = "No calls in this time."
    return _block(
        _chart("Latency", note, answer, latency_lines(answer), mark, empty, zeros=True),
        _table("Calls by topic", columns, answer["topics"], empty),
    )


def _talkers(answer: Answer) -> str:
    def columns(name: str) -> Columns:
        return {
            name: _user if name == "userid" else _name(name),
            "messages": lambda row: short(row["n"]), "bytes": lambda row: size(row["bytes"]),
            "errors": lambda row: short(row["errors"]),
        }  # fmt: skip

    titles = {"userid": "Top users", "topic": "Top topics", "service": "Top services"}
    tables = [
        _table(title, columns(name), answer[f"by_{name}"], "Nothing in this time.")
        for name, title in titles.items()
    ]
    return _block(*tables, kind="wide")


def _errors(answer: Answer) -> str:
    columns: Columns = {
        "topic": _name("topic"), "why": lambda row: error(row["errno"]), "what": _key("kind"),
        "errors": lambda row: short(row["n"]),
    }  # fmt: skip
    empty = "No errors in this time."
    return _block(
        _chart("Errors", "per step, by errno", answer, stacked_lines(answer), short, empty, bars=True),
        _table("Errors by topic", columns, answer["by"], empty),
    )


def _denied(answer: Answer) -> str:
    columns: Columns = {
        "time": _time(answer), "userid": _user, "topic": _name("topic"),
        "why": lambda row: error(row["errno"]), "from": _name("peer"), "rank": _key("rank"),
    }  # fmt: skip
    empty = "Nothing was refused in this time."
    refused = [Line("refused", "warn", answer["n"])]
    return _block(
        _chart("Denied access", "per step", answer, refused, short, empty, bars=True),
        _table("Newest refusals", columns, answer["newest"], empty),
    )


def _order(answer: Answer) -> str:
    mood, sentence = verdict(answer)
    pairs: Columns = {
        "from": _name("origin"), "to": _name("peer"), "type": _key("type"), "rank": _key("rank"),
        "messages": lambda row: short(row["n"]), "out of order": _key("out_of_order"), "missing": _key("missing"),
    }  # fmt: skip
    gaps: Columns = {
        "time": _time(answer), "what": _key("kind"), "from": _name("peer"), "rank": _key("rank"),
        "after": _key("prev_seq"), "came": _key("next_seq"), "missing": _key("missing"),
    }  # fmt: skip
    return _block(
        f'<section><h2>Order of deliveries</h2><p class="verdict {mood}">{escape(sentence)}</p></section>',
        _table(
            "Pairs out of order", pairs, answer["findings"], "No pair has a message out of order or missing."
        ),
        _table("Event numbers", gaps, answer["event_gaps"], "The numbers of events follow each other."),
    )


def _slow(answer: Answer) -> str:
    columns: Columns = {
        "who": _name("peer"), "rank": _key("rank"), "what": _key("what"), "messages": lambda row: short(row["events"]),
        "bytes": lambda row: size(row["bytes"]),
    }  # fmt: skip
    empty = "Nobody was too slow in this time."
    lost = [Line("lost", "bad", answer["events"])]
    return _block(
        _chart("Slow consumers", "events and answers lost per step", answer, lost, short, empty, bars=True),
        _table("Who lost", columns, answer["by"], empty),
    )


def _jobs(answer: Answer) -> str:
    columns: Columns = {
        "service": _key("service"), "task": _key("task"), "jobs": lambda row: short(row["n"]), "mean": _ns("mean_ns"),
        "outcome": lambda row: ", ".join(f"{n} {name}" for name, n in row["statuses"].items()),
    }  # fmt: skip
    empty = "No jobs in this time; headgate nfp broker --journal DIR records them."
    return _block(
        _chart("Jobs", "submitted per step", answer, stacked_lines(answer), short, empty, bars=True),
        _table("Jobs by task", columns, answer["tasks"], empty),
    )


def _notifications(answer: Answer) -> str:
    columns: Columns = {
        "type": _name("event_type"), "publisher": _name("publisher_id"), "notifications": lambda row: short(row["n"]),
        "bytes": lambda row: size(row["bytes"]),
    }  # fmt: skip
    empty = "No notifications in this time; headgate oslo proxy --journal DIR records them."
    return _block(
        _chart(
            "Notifications", "per step, by priority", answer, stacked_lines(answer), short, empty, bars=True
        ),
        _table("Notifications by type", columns, answer["by"], empty),
    )


def _runs(summary: Answer) -> str:
    columns: Columns = {
        "ended": lambda row: NOT_SAID if row["finished_at"] is None else moment(row["finished_at"]), "job": _key("job"),
        "read": lambda row: short(row["rows_in"] or 0), "written": lambda row: short(row["rows_out"] or 0),
        "damaged": _key("bad_blocks"), "lost": _key("lost_records"),
        "took": lambda row: NOT_SAID if row["duration_s"] is None else f"{row['duration_s']:.1f} s",
    }  # fmt: skip
    return _block(
        _table("Runs of the pipeline", columns, summary["runs"], "The pipeline has not run yet."), kind="wide"
    )


# ---------------------------------------------------------------- parts


class Cut(NamedTuple):
    """A name that was made short, and the whole one."""

    said: str
    whole: str


Columns = dict[str, Callable[[dict[str, Any]], str | Cut]]
LEFT: Final = frozenset(
    ["topic", "userid", "service", "time", "why", "from", "to", "type", "what", "who", "task", "outcome"]
) | {"publisher", "ended", "job"}
"""Columns of words; all others are numbers and set right."""
SERVED: Final = {"own": "a built-in service", "client": "a client's service"}
"""Where the last step of a call leads."""
KINDS: Final = {"time": "slim", "ended": "slim", "userid": "slim", "why": "slim", "topic": "broad"}
"""Columns of words that are not broken, and those that need more room than others."""


def _block(*parts: str, kind: str = "") -> str:
    return f'<div class="block {kind}">{"".join(parts)}</div>\n'


def _chart(
    title: str,
    note: str,
    answer: Answer,
    lines: Sequence[Line],
    form: Callable[[float], str],
    empty: str,
    *,
    bars: bool = False,
    zeros: bool = False,
) -> str:
    drawing = chart(title, answer["times"], answer["step_s"], lines, form, bars=bars, zeros=zeros)
    legend = "".join(f'<li class="tone-{line.tone}"><i></i>{escape(line.name)}</li>' for line in lines)
    shown = f"<ul>{legend}</ul>{drawing}" if drawing else f'<p class="empty">{escape(empty)}</p>'
    return f"<section><h2>{escape(title)} <small>{escape(note)}</small></h2>{shown}</section>"


def _table(title: str, columns: Columns, rows: Sequence[dict[str, Any]], empty: str) -> str:
    if not rows:
        return f'<section><h2>{escape(title)}</h2><p class="empty">{escape(empty)}</p></section>'

    def cell(name: str, tag: str, value: str | Cut) -> str:
        shown, whole = value if isinstance(value, Cut) else (value, value)
        kind = "number" if name not in LEFT else KINDS.get(name, "")
        kind = f' class="{kind}"' if kind else ""
        title = f' title="{escape(whole)}"' if whole != shown else ""
        return f"<{tag}{kind}{title}>{escape(shown)}</{tag}>"

    head = "".join(cell(name, "th", name) for name in columns)
    body = "".join(
        f"<tr>{''.join(cell(name, 'td', of(row)) for name, of in columns.items())}</tr>"
        for row in rows[:ROWS]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<section><h2>{escape(title)}</h2><div class="scroll">{table}</div></section>'


def _time(answer: Answer) -> Callable[[dict[str, Any]], str]:
    fine = answer["until"] - answer["since"] <= FINE_S
    return lambda row: moment(row["ts"], fine=fine)


def _user(row: dict[str, Any]) -> str:
    return user(row["userid"])


def _name(name: str) -> Callable[[dict[str, Any]], Cut]:
    most = BRIEF_TOPIC if name in ("topic", "service", "event_type") else BRIEF
    return lambda row: Cut(brief(row[name], most), text(row[name]))


def _key(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: text(row[name])


def _ns(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: NOT_SAID if row[name] is None else duration(row[name])
