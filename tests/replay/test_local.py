"""Every captured dialogue of one client, held with a live tree of four; ``interop``: with a real flux-core."""

import os

import pytest

from broker.wire.message import EVENT, RESPONSE, STREAMING, Message
from tests.conftest import OPTIONAL
from tests.live.speaker import FENCE, Speaker
from tests.replay.comparison import GUEST_UID, check
from tests.replay.dialogues import Dialogue, Turn, dialogues
from tests.tables import for_each
from tests.vectors import excluded

ANSWER_S = 5.0
SILENCE_S = 0.5
"""How long an answer is waited for that must not be the captured one: silence is one of the differences."""


BETTER = {"raw-topic300"}
"""A deployed broker drops a topic of this length without a word; Headgate answers."""
EXCLUDED = {case for _file, case in excluded("replay")}


def cases(*, excluded: bool, guest: bool) -> list[str]:
    return [
        case
        for case, dialogue in dialogues().items()
        if (case in EXCLUDED) is excluded and bool(dialogue.guest) is guest
    ]


@for_each("case", lambda: cases(excluded=False, guest=False))
def test_dialogues(case, headgate):
    hold(dialogues()[case], headgate)


@for_each("case", lambda: cases(excluded=False, guest=True))
def test_dialogues_of_guests(case, headgate):
    hold(dialogues()[case], headgate)


@for_each("case", lambda: cases(excluded=True, guest=False))
def test_exclusions_are_still_needed(case, headgate):
    """Their reasons stand in excluded.json; once Headgate answers as captured, the entry goes."""
    with pytest.raises(AssertionError):
        hold(dialogues()[case], headgate, answer_s=SILENCE_S)


@for_each("case", lambda: cases(excluded=True, guest=True))
def test_exclusions_of_guests_are_still_needed(case, headgate):
    with pytest.raises(AssertionError):
        hold(dialogues()[case], headgate, answer_s=SILENCE_S)


@pytest.mark.interop
@pytest.mark.parametrize("case", [case for case in dialogues() if case not in EXCLUDED | BETTER])
def test_flux_core_answers_as_the_tables_say(case, flux_core):
    hold(dialogues()[case], flux_core)


def hold(dialogue: Dialogue, uri: str, answer_s: float = ANSWER_S) -> None:
    if dialogue.guest and os.getuid() != 0:
        pytest.skip(f"{OPTIONAL} needs root to connect as uid {GUEST_UID}")
    with Speaker(uri, GUEST_UID if dialogue.guest else None) as client:
        streams: set[int] = set()
        for turn in dialogue.turns:
            take_turn(client, turn, answer_s)
            streams.update(
                one["matchtag"] for one in turn.hear if one["flags"] & STREAMING and "matchtag" in one
            )
        assert client.ping() == 0
        left = [one for one in client.seen if not of_a_stream(one, streams)]
        assert left == [], f"not expected: {left}"


def take_turn(client: Speaker, turn: Turn, answer_s: float) -> None:
    client.send(turn.say)
    for expected in turn.hear:
        seen = hear(client, expected, answer_s)
        while seen.errnum == 0 and expected.get("errnum", 0) != 0 and seen.flags & STREAMING:
            seen = hear(client, expected, answer_s)
        check(seen, expected)


def hear(client: Speaker, expected: dict, answer_s: float) -> Message:
    try:
        return client.take(lambda message: fits(message, expected), answer_s)
    except TimeoutError:
        raise AssertionError(f"no answer to {expected['topic']}") from None


def fits(message: Message, expected: dict) -> bool:
    if expected["type"] == "event":
        return message.type == EVENT and message.topic == expected["topic"]
    return (
        message.type == RESPONSE
        and message.matchtag == expected["matchtag"]
        and message.topic == expected["topic"]
    )


def of_a_stream(message: Message, streams: set[int]) -> bool:
    """Further answers of a stream, and the heartbeat that a subscription to everything brings."""
    if message.type == EVENT:
        return message.topic == "heartbeat.pulse"
    return message.matchtag in streams or message.matchtag >= FENCE
