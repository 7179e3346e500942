"""``headgate pipeline report``: one page that needs nothing beside it and says what the answers say."""

import re
import stat
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from broker.errors import HeadgateError
from gateway.cli.pipeline import report as verb
from gateway.pipeline import report
from gateway.pipeline.picture import HEIGHT, WIDTH, drawn
from tests.live import warehouse as wh

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that tags close in order and collects what they hold."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href", "style")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def test_the_page_is_whole_and_alone(rich, tmp_path, capsys):
    file, picture = tmp_path / "report.html", tmp_path / "history.svg"
    assert verb.main(["--warehouse", str(rich), "-o", str(file), "--svg", str(picture)]) == 0
    assert f"{file} and {picture}: " in capsys.readouterr().out
    text = file.read_text()
    page = Page(text)
    assert page.links == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not re.search(r"https?://|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert page.tags.count("svg") == 7
    words = " ".join(page.words)
    for said in ("Traffic", "Latency", "Top users", "Denied access", "Errors by topic", "ENOSYS", "not captured",
                 "Where in the tree the time goes", "a client's service", "secret.read", "client-4", "web-2", "backup",
                 "compute.instance.create.end", "2 out of order, 1 missing", "ingest"):  # fmt: skip
        assert said in words, said
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {each.name for each in tmp_path.iterdir()} == {"report.html", "history.svg"}
    with pytest.raises(SystemExit):
        verb.main(["--warehouse", str(rich)])
    assert "nothing to write" in capsys.readouterr().err


def test_bounds_of_the_command_line(rich, tmp_path, capsys):
    file = tmp_path / "noon.html"
    verb.main(
        [
            "--warehouse",
            str(rich),
            "-o",
            str(file),
            "--since",
            "2026-03-02T12:00",
            "--until",
            "2026-03-02T12:10",
        ]
    )
    assert "2 Mar 12:00 to 2 Mar 12:10 UTC" in file.read_text()
    expected = sum(
        row["n"]
        for row in wh.traffic()
        if row["_when"] == wh.SPIKE and row["direction"] == "in" and row["kind"] != "state"
    )
    assert f"{expected} messages" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        verb.main(["--warehouse", str(rich), "-o", str(file), "--since", "yesterday"])


def test_names_from_outside_are_text(tmp_path):
    evil = "</td><script>alert(1)</script>"
    when = wh.FIRST + 60
    wh.write(tmp_path, "traffic", [{
        "_when": when, "window": wh.at(when), "rank": 0, "direction": "in", "kind": "flux", "service": evil,
        "topic": evil, "type": evil, "n": 3}])  # fmt: skip
    wh.write(
        tmp_path,
        "denied",
        [{"_when": when, "ts": wh.at(when), "topic": evil, "peer": evil, "kind": evil, "errno": 1}],
    )
    wh.write(tmp_path, "slow", [{"_when": when, "ts": wh.at(when), "peer": evil, "what": evil, "events": 1}])
    wh.write(
        tmp_path, "job_outcomes", [{"_when": when, "t_submit": wh.at(when), "status": evil, "task": evil}]
    )
    file = tmp_path / "report.html"
    report.write(str(tmp_path), str(file))
    page = Page(file.read_text())
    assert "script" not in page.tags
    assert any(evil in words for words in page.words)


def test_an_empty_warehouse_says_what_to_do(tmp_path):
    file = tmp_path / "report.html"
    report.write(str(tmp_path), str(file))
    text = file.read_text()
    assert "the pipeline has not run yet" in text
    assert "No messages in this time." in text
    assert "journal.capture = &quot;both&quot;" in text


def test_what_cannot_be_done_leaves_the_old_page(rich, tmp_path):
    file = tmp_path / "report.html"
    file.write_text("the old one")
    with pytest.raises(HeadgateError, match="there is no warehouse at"):
        verb.main(["--warehouse", str(tmp_path / "nothing"), "-o", str(file)])
    with pytest.raises(HeadgateError, match="expected 0 <= since < until"):
        verb.main(["--warehouse", str(rich), "-o", str(file), "--since", "10", "--until", "5"])
    assert file.read_text() == "the old one"
    with pytest.raises(HeadgateError, match="no-such-folder"):
        verb.main(["--warehouse", str(rich), "-o", str(tmp_path / "no-such-folder" / "x.html")])


def test_the_picture_is_whole_and_alone(rich, tmp_path, capsys):
    file = tmp_path / "history.svg"
    assert verb.main(["--warehouse", str(rich), "--svg", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: ")
    assert [each.name for each in tmp_path.iterdir()] == ["history.svg"]
    text = file.read_text()
    assert not re.search(r"@import|url\(|<script|href", text)
    root = ET.fromstring(text)
    svg = "{http://www.w3.org/2000/svg}"
    assert (root.tag, root.get("width"), root.get("height")) == (f"{svg}svg", str(WIDTH), str(HEIGHT))
    assert len(list(root.iter(f"{svg}svg"))) == 5
    words = " ".join(root.itertext())
    for said in (
        "Traffic",
        "request",
        "Latency",
        "median",
        "99 %",
        "Denied access",
        "refused",
        "Jobs",
        "messages",
    ):
        assert said in words, said
    assert "between 24 pairs of endpoints were checked: 2 out of order, 1 missing." in words
    for each in root.iter(f"{svg}rect"):
        assert float(each.get("x", 0)) + float(each.get("width")) <= WIDTH
        assert float(each.get("y", 0)) + float(each.get("height")) <= HEIGHT


def test_a_picture_of_nothing_says_so(tmp_path):
    root = ET.fromstring(drawn(report.read(str(tmp_path))))
    words = " ".join(root.itertext())
    for said in ("No messages.", "No calls.", "Nothing refused.", "No jobs.", "Nothing was checked"):
        assert said in words, said


def test_long_names_are_short_and_whole_in_their_title(tmp_path):
    uuid = "0f1f0f8f-74ef-4854-aeb6-9f5a77e6d55d"
    wh.write(tmp_path, "order_check", [{"_when": wh.FIRST, "rank": 0, "origin": uuid, "peer": "broker", "n": 5,
                                        "type": "response", "out_of_order": 1, "missing": 0,
                                        "first_ts": wh.at(wh.FIRST), "last_ts": wh.at(wh.FIRST + 9)}])  # fmt: skip
    wh.write(tmp_path, "traffic", [{"_when": wh.FIRST, "window": wh.at(wh.FIRST), "n": 1, "topic": "t" * 60,
                                    "direction": "in", "kind": "flux", "type": "event"}])  # fmt: skip
    file = tmp_path / "report.html"
    report.write(str(tmp_path), str(file))
    text = file.read_text()
    assert f'<td title="{uuid}">0f1f0f8f\N{HORIZONTAL ELLIPSIS}</td>' in text
    assert f'title="{"t" * 60}">' in text
