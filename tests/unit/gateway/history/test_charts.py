"""SVG texts: whole, within their frame, and unable to carry anybody's markup."""

import re
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from gateway.history.charts import HEIGHT, LEFT, RIGHT, WIDTH, Line, chart, scale

VALUES = st.one_of(st.none(), st.floats(0, 1e15, allow_subnormal=False), st.integers(0, 10**15))


@given(
    st.lists(
        st.tuples(st.text(max_size=8), st.lists(VALUES, min_size=6, max_size=6)), min_size=1, max_size=4
    ),
    st.booleans(),
)
def test_every_chart_is_xml_and_inside_its_frame(series, bars):
    lines = [Line(name, "0", values) for name, values in series if name.isprintable()]
    drawn = chart("any", [float(at * 60) for at in range(6)], 60, lines, str, bars=bars)
    if not any(value for line in lines for value in line.values):
        assert drawn == ""
        return
    root = ET.fromstring(drawn)
    paths = list(root.iter("path"))
    assert len(paths) == len(lines)
    for path in paths:
        for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.get("d")):
            assert LEFT - 0.1 <= float(x) <= WIDTH - RIGHT + 0.1
            assert 0 <= float(y) <= HEIGHT


@given(st.floats(1e-6, 1e18))
def test_a_scale_has_few_marks_and_holds_the_largest(most):
    marks = scale(most)
    assert marks[0] == 0
    assert 2 <= len(marks) <= 5
    assert marks[-1] >= most * 0.998


def test_names_from_outside_are_text():
    evil = "</title><script>alert(1)</script>"
    drawn = chart(evil, [0.0], 60, [Line(evil, "0", [1])], str, bars=True)
    assert "<script" not in drawn
    assert evil in "".join(ET.fromstring(drawn).itertext())


def test_a_value_alone_between_unknown_ones_is_a_point():
    drawn = chart("dots", [0.0, 60.0, 120.0], 60, [Line("one", "0", [None, 5, None])], str)
    (path,) = ET.fromstring(drawn).iter("path")
    assert re.fullmatch(r"M\S+ \S+a1\.5 1\.5 0 1 0 3\.0 0a1\.5 1\.5 0 1 0 -3\.0 0", path.get("d"))


def test_a_latency_of_nothing_is_drawn_and_a_count_of_nothing_is_not():
    lines = [Line("median", "ok", [None, 0, None])]
    times = [0.0, 60.0, 120.0]
    assert chart("counts", times, 60, lines, str) == ""
    drawn = ET.fromstring(chart("latency", times, 60, lines, lambda ns: f"{ns} ns", zeros=True))
    assert re.search(r"M\S+ \S+a1\.5", next(drawn.iter("path")).get("d"))
    assert [title.text for title in drawn.iter("title")] == ["1 Jan 00:01 UTC: median 0 ns"]


def test_a_short_time_is_marked_by_seconds():
    lines = [Line("one", "ok", [1.0] * 12)]
    drawn = ET.fromstring(chart("short", [600.0 + 10 * at for at in range(12)], 10, lines, str))
    marks = [each.text for each in drawn.iter("text") if each.get("class") == "when"]
    assert marks[:3] == ["00:10:00", "00:10:20", "00:10:40"]
    assert [title.text for title in drawn.iter("title")][:2] == [
        "1 Jan 00:10:00 UTC: one 1.0",
        "1 Jan 00:10:10 UTC: one 1.0",
    ]
