"""Scenes of events that outlive: the checker passes a right log, and finds what is made wrong in it."""

import copy
import json

import pytest

from tests.proof.checker import check
from tests.proof.layout import PREFIXES, SEES, TOPICS, topic_of
from tests.proof.logs import DRIVER, path_of

pytestmark = pytest.mark.tools
EVENTS = 300
NUMBERS = 7
"""Events of others have numbers, too."""


def log(told=False):
    """Right lines, by party: two dashboards that were away from event 100 to 200, where ``told`` for good."""
    parties = {
        DRIVER: [
            {"ev": "scene", "name": "one", "told": told, "anew": False, "dashboards": 2},
            {"ev": "fault", "begin": True, "kind": "kill9", "members": ["gateway-a", "gateway-b"]},
            {"ev": "until", "ident": EVENTS - 1},
        ],
        "publisher": [{"ev": "topics", "topics": TOPICS}],
    }
    for first in range(0, EVENTS, 10):
        upto = first + 9
        parties["publisher"].append({"ev": "publish", "upto": upto})
        parties["publisher"].append(
            {"ev": "published", "first": first, "upto": upto, "sequence": upto + NUMBERS}
        )
    for user in ("ada", "bob"):
        lines = [{"ev": "sees", "prefixes": SEES[user]}, back(NUMBERS - 1)]
        mine = [ident for ident in range(EVENTS) if topic_of(ident).startswith(SEES[user])]
        for part in (range(100), range(100, 200), range(200, EVENTS)):
            if part.start == 200:
                lines.append(back(199 + NUMBERS, recovered=not told))
            if part.start != 100 or not told:
                lines.append(events(*(ident for ident in mine if ident in part)))
        parties[user] = lines
    return parties


def back(sequence, recovered=True, epoch="e"):
    return {"ev": "back", "epoch": epoch, "sequence": sequence, "recovered": recovered, "replayed": 0}


def events(*idents):
    return {"ev": "events", "idents": list(idents), "sequences": [ident + NUMBERS for ident in idents]}


def judged(parties, folder):
    for who, lines in parties.items():
        text = "".join(json.dumps({"t": 1.0, "who": who, **line}) + "\n" for line in lines)
        path_of(folder, who).write_text(text)
    return check(folder)


@pytest.mark.parametrize("told", [False, True])
def test_a_right_one_passes(tmp_path, told):
    verdict = judged(log(told), tmp_path)
    assert verdict.violations == []
    assert verdict.faults == {"kill9": 2}
    assert verdict.messages["events dashboards"] == EVENTS
    assert verdict.judged["returns"] == 4
    assert verdict.judged["events owed to dashboards"] > EVENTS


def lose(row, ident):
    at = row["idents"].index(ident)
    del row["idents"][at], row["sequences"][at]


def double(row):
    for name in ("idents", "sequences"):
        row[name].append(row[name][-1])


def swap(row):
    for name in ("idents", "sequences"):
        row[name][3], row[name][4] = row[name][4], row[name][3]


def show(row, ident):
    row["idents"].append(ident)
    row["sequences"].append(ident + NUMBERS)


WRONG = {
    "the first one is lost": ("C13", lambda one: lose(one["ada"][2], 0)),
    "one is lost": ("C13", lambda one: lose(one["ada"][2], 50)),
    "one is lost on return": ("C13", lambda one: lose(one["bob"][3], 150)),
    "one comes twice": ("C7", lambda one: double(one["ada"][3])),
    "one comes again on return": ("C7", lambda one: one["ada"].insert(5, events(150))),
    "two change places": ("C7", lambda one: swap(one["bob"][2])),
    "a number is given twice": ("C7", lambda one: one["ada"][2]["sequences"].__setitem__(5, NUMBERS + 6)),
    "dashboards differ": ("C7", lambda one: one["bob"][5]["sequences"].__setitem__(-1, 400)),
    "the publisher differs": ("C7", lambda one: one["publisher"][2].update(sequence=9 + NUMBERS + 1)),
    "one is private": ("C9", lambda one: show(one["bob"][5], 309)),
    "one is denied": ("C9", lambda one: show(one["bob"][5], 304)),
    "one was never published": ("C0", lambda one: show(one["ada"][5], 303)),
    "one has another topic": ("C0", lambda one: one["ada"][2].update(odd=[[4, "t.4"]])),
    "a loss is told": ("C14", lambda one: one["bob"].insert(4, {"ev": "missed", "lost": 3})),
    "what is back is not all": ("C14", lambda one: one["bob"][4].update(recovered=False)),
    "numbers begin anew": ("C14", lambda one: one["bob"].insert(5, {"ev": "renumbered", "epoch": "f"})),
    "one got nothing": ("C0", lambda one: one["bob"].__delitem__(slice(1, None))),
    "one is not there": ("C0", lambda one: one.pop("bob")),
    "the scene has no end": ("C0", lambda one: one[DRIVER].pop()),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_one_is_found(tmp_path, what):
    rule, change = WRONG[what]
    parties = copy.deepcopy(log())
    change(parties)
    assert rule in judged(parties, tmp_path).broken


def test_a_word_excuses_what_is_missing_right_there_and_nothing_else(tmp_path):
    parties = log(told=True)
    lose(parties["ada"][2], 20)
    verdict = judged(parties, tmp_path)
    assert verdict.broken == {"C13": 1}
    assert verdict.violations[0].what == f"ada never got event 20, {topic_of(20)}, without a word"


def test_two_words_in_a_row_excuse_no_more_than_one(tmp_path):
    parties = log(told=True)
    parties["ada"].insert(4, {"ev": "missed", "lost": 0})
    lose(parties["ada"][5], 250)
    assert judged(parties, tmp_path).broken == {"C13": 1}


def test_who_ought_to_have_been_told_of_a_loss_was_not(tmp_path):
    parties = log(told=True)
    parties["bob"] = log()["bob"]
    assert judged(parties, tmp_path).broken == {"C14": 1}


def test_a_numbering_that_begins_anew_may_give_numbers_again(tmp_path):
    parties = log(told=True)
    parties[DRIVER][0]["anew"] = True
    for user in ("ada", "bob"):
        parties[user][3].update(epoch="f", sequence=0)
        parties[user][4]["sequences"] = [ident - 199 for ident in parties[user][4]["idents"]]
    for line in parties["publisher"]:
        if line["ev"] == "published" and line["first"] >= 100:
            line["sequence"] -= 199 + NUMBERS
    assert judged(parties, tmp_path).violations == []


def test_topics_are_what_users_may_see_in_turn():
    assert [sum(topic.startswith(prefix) for topic in TOPICS) for prefix in PREFIXES] == [56, 7, 7]
