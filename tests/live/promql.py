"""As much of PromQL as the alert rules use, over scrapes of live programs.

::

    comparison = sum [("==" | "!=" | "<" | "<=" | ">" | ">=") sum]
    sum        = term {("+" | "-") term}
    term       = factor {"*" factor}
    factor     = NUMBER | "(" comparison ")" | "time" "(" ")" | "sum" "by" "(" labels ")" "(" comparison ")"
               | ("rate" | "increase") "(" series RANGE ")" | series
    series     = NAME ["{" LABEL ("=" | "=~") STRING {"," ...} "}"]

A vector is a dict from labels to values. A comparison keeps what is true, so a rule fires where something is left.
"""

import operator
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

TOKEN = re.compile(
    r'\s*(\d+\.?\d*(?:e\d+)?(?![\w.])|\[\d+[smhd]\]|[A-Za-z_]\w*|"[^"]*"|[=!<>]=|=~|[-=<>(){},*+])'
)
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
COMPARED = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
COUNTED = {"+": operator.add, "-": operator.sub, "*": operator.mul}

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]


class Scrape(NamedTuple):
    """What was there at one moment: its seconds, and name -> labels -> value."""

    at_s: float
    series: dict[str, Vector]


def scraped(text: str, at_s: float, **target: str) -> Scrape:
    """A page of metrics; ``target`` are the labels that Prometheus adds."""
    series: dict[str, Vector] = {"up": {frozenset(target.items()): 1.0}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset({**sample.labels, **target}.items())
            series.setdefault(sample.name, {})[labels] = sample.value
    return Scrape(at_s, series)


def missed(at_s: float, **target: str) -> Scrape:
    """A scrape that nobody answered."""
    return Scrape(at_s, {"up": {frozenset(target.items()): 0.0}})


def evaluate(expression: str, scrapes: Sequence[Scrape], *, now: float = 0.0) -> Vector | float:
    """The value of ``expression`` at the last scrape; ``now`` is what ``time()`` says."""
    query = _Query(expression, scrapes, now)
    found = query.comparison()
    assert query.next() == "", f"{expression!r} goes on behind what is understood"
    return found


def _words(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        assert match, f"{text[at:]!r} is not understood"
        found.append(match[1])
        at = match.end()
    return found


class _Query:
    def __init__(self, expression: str, scrapes: Sequence[Scrape], now: float) -> None:
        self._words = _words(expression.strip())
        self._scrapes = scrapes
        self._now = now

    def next(self, *wanted: str) -> str:
        """The next word; with ``wanted`` only one of these, else ""."""
        if self._words and (not wanted or self._words[0] in wanted):
            return str(self._words.pop(0))
        return ""

    def comparison(self) -> Vector | float:
        left = self.sum()
        word = self.next(*COMPARED)
        if not word:
            return left
        right = self.sum()
        assert isinstance(left, dict), "a comparison begins with a vector here"
        return {
            labels: value
            for labels, value in left.items()
            if (other := _beside(right, labels)) is not None and COMPARED[word](value, other)
        }

    def sum(self) -> Vector | float:
        found = self.term()
        while word := self.next("+", "-"):
            found = _applied(COUNTED[word], found, self.term())
        return found

    def term(self) -> Vector | float:
        found = self.factor()
        while word := self.next("*"):
            found = _applied(COUNTED[word], found, self.factor())
        return found

    def factor(self) -> Vector | float:
        word = self.next()
        if word[0].isdigit():
            return float(word)
        if word == "(":
            return self.closed(self.comparison())
        if word == "time":
            self.past("(")
            return self.closed(self._now)
        if word == "sum":
            return self.sum_by()
        if word in ("rate", "increase"):
            self.past("(")
            kept = self.series(self.next())
            window = self.next()
            seconds = int(window[1:-2]) * SECONDS[window[-2]]
            grown = self.increase(kept, seconds)
            return self.closed({each: by / seconds if word == "rate" else by for each, by in grown.items()})
        return self.series(word)(self._scrapes[-1])

    def past(self, *words: str) -> None:
        for word in words:
            assert self.next(word), f"{word!r} is missing"

    def closed(self, found: Vector | float) -> Vector | float:
        self.past(")")
        return found

    def sum_by(self) -> Vector:
        self.past("by", "(")
        names = {self.next()}
        while self.next(","):
            names.add(self.next())
        self.past(")", "(")
        found = self.closed(self.comparison())
        assert isinstance(found, dict)
        sums: Vector = {}
        for labels, value in found.items():
            kept = frozenset(each for each in labels if each[0] in names)
            sums[kept] = sums.get(kept, 0.0) + value
        return sums

    def series(self, name: str) -> Callable[[Scrape], Vector]:
        """What takes the series of this name, and of labels as wanted, out of a scrape."""
        wanted = []
        if self.next("{"):
            while label := self.next():
                how, text = self.next(), self.next()[1:-1]
                wanted.append((label, re.compile(text if how == "=~" else re.escape(text))))
                if not self.next(","):
                    break
            self.past("}")

        def kept(scrape: Scrape) -> Vector:
            return {
                labels: value
                for labels, value in scrape.series.get(name, {}).items()
                if all(pattern.fullmatch(dict(labels).get(label, "")) for label, pattern in wanted)
            }

        return kept

    def increase(self, kept: Callable[[Scrape], Vector], seconds: float) -> Vector:
        """By how much counters grew; a series with one value only has none, as in Prometheus."""
        end = self._scrapes[-1].at_s
        found: Vector = {}
        last: Vector = {}
        for scrape in self._scrapes:
            if scrape.at_s <= end - seconds:
                continue
            for labels, value in kept(scrape).items():
                if labels in last:
                    grown = value - last[labels]
                    found[labels] = found.get(labels, 0.0) + (grown if grown >= 0 else value)
                last[labels] = value
        return found


def _beside(other: Vector | float, labels: Labels) -> float | None:
    return other.get(labels) if isinstance(other, dict) else other


def _applied(
    act: Callable[[float, float], float], left: Vector | float, right: Vector | float
) -> Vector | float:
    if isinstance(left, dict):
        return {
            labels: act(value, other)
            for labels, value in left.items()
            if (other := _beside(right, labels)) is not None
        }
    if isinstance(right, dict):
        return {labels: act(left, value) for labels, value in right.items()}
    return act(left, right)
