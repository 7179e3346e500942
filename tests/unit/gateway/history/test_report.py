"""``headgate pipeline report``: one page that needs nothing beside it, with the answers in it."""

import base64
import hashlib
import json
import re
import stat
from html.parser import HTMLParser

import pytest

from broker.errors import HeadgateError
from gateway.cli.pipeline import report as verb
from gateway.history.reader import QUESTIONS
from gateway.pipeline import report
from gateway.pipeline.errors import PipelineError
from tests.live import warehouse as wh

VOID = {"meta", "br"}
BYTES_MAX = 200_000


class Page(HTMLParser):
    """Checks that tags close in order and collects what they hold."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.inside, self.policy = [], [], [], {}, ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        known = dict(attrs)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href", "style")]
        if known.get("http-equiv") == "Content-Security-Policy":
            self.policy = known["content"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.inside.setdefault(self.open[-1], []).append(data)

    @property
    def answers(self):
        return json.loads(self.inside["script"][0])


def written(warehouse, place, **more):
    report.write(str(warehouse), str(place / "report.html"), **more)
    return Page((place / "report.html").read_text())


def test_the_page_is_whole_and_alone(rich, tmp_path, capsys):
    file = tmp_path / "report.html"
    assert verb.main(["--warehouse", str(rich), "-o", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    page = Page(file.read_text())
    assert len(file.read_bytes()) < BYTES_MAX
    assert page.links == []
    assert not {"link", "img", "iframe"} & set(page.tags)
    answers, program = page.inside["script"]
    (style,) = page.inside["style"]
    for text in (program, style):
        known = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{known}'" in page.policy
    assert page.policy.startswith("default-src 'none'; ")
    assert not re.search(r"@import|url\(", style)
    assert set(page.answers) == set(QUESTIONS)
    for said in ("secret.read", "client-4", "web-2", "backup", "compute.instance.create.end", "ingest"):
        assert said in answers, said


def test_bounds_of_the_command_line(rich, tmp_path, capsys):
    file = tmp_path / "noon.html"
    bounds = ["--since", "2026-03-02T12:00", "--until", "2026-03-02T12:10"]
    verb.main(["--warehouse", str(rich), "-o", str(file), *bounds])
    page = Page(file.read_text())
    assert page.inside["title"] == ["Headgate history, 2026-03-02 12:00 to 2026-03-02 12:10 UTC"]
    expected = sum(
        row["n"]
        for row in wh.traffic()
        if row["_when"] == wh.SPIKE and row["direction"] == "in" and row["kind"] != "state"
    )
    assert f"{expected} messages" in capsys.readouterr().out
    assert {(each["since"], each["until"]) for each in page.answers.values()} == {(wh.SPIKE, wh.SPIKE + 600)}
    for wrong in ([], ["-o", str(file), "--since", "yesterday"]):
        with pytest.raises(SystemExit):
            verb.main(["--warehouse", str(rich), *wrong])


def test_names_from_outside_are_data_and_no_longer_than_a_line(tmp_path):
    evil = "</script><!--<script>alert(1)</script>"
    when = wh.FIRST + 60
    shared = {"_when": when, "window": wh.at(when), "rank": 0, "direction": "in", "kind": "flux", "n": 3}
    wh.write(tmp_path, "traffic", [{**shared, "topic": each} for each in (evil, "t" * 5000)])
    wh.write(tmp_path, "slow", [{"_when": when, "ts": wh.at(when), "peer": evil, "what": evil, "events": 1}])
    page = written(tmp_path, tmp_path)
    assert page.tags.count("script") == 2
    assert page.answers["slow"]["by"][0]["peer"] == evil
    topics = [row["topic"] for row in page.answers["talkers"]["by_topic"]]
    assert sorted(topics) == [evil, "t" * (report.NAME_MAX - 1) + "…"]


def test_an_empty_warehouse_has_a_page(tmp_path):
    page = written(tmp_path, tmp_path)
    assert page.answers["summary"]["fresh_s"] is None
    assert page.answers["traffic"]["series"] == []


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


def test_modules_become_one_program_or_are_named(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/one.js").write_text("export const ONE = 1;\nexport function two() { return ONE + 1; }\n")
    (tmp_path / "lib/three.js").write_text(
        "import {\n  ONE as one,\n  two,\n} from './one.js';\n\nexport class Three { is = one + two(); }\n"
    )
    main = tmp_path / "main.js"
    main.write_text("import * as lib from './lib/three.js';\nimport { ONE } from './lib/one.js';\n\nlib;\n")
    program = report.bundled(tmp_path, "main.js")
    assert re.findall(r"modules\['(.*?)'\] =", program) == ["lib/one.js", "lib/three.js", "main.js"]
    assert "return { ONE, two };" in program
    assert "const {\n  ONE: one,\n  two,\n} = modules['lib/one.js'];" in program
    for wrong in ("export default 1;\n", "import './lib/one.js';\n", "const a = '</script>';\n"):
        main.write_text(wrong)
        with pytest.raises(PipelineError, match=r"^main\.js: "):
            report.bundled(tmp_path, "main.js")
