"""What a broker sends in a window and what the other one says that it has handled: nobody waits when all is handled."""

from hypothesis import given
from hypothesis import strategies as st

from broker.routing.counters import MessageCounters
from broker.routing.flow import Flow, Window
from broker.routing.port import CHILD, Port
from broker.transport.outbox import WINDOW_MSGS, InFlight
from tests.unit.routing.sim import OWNER, new_uuid

GREETING = 8
"""Words of the greeting, which one end counts and the other does not."""
STEPS = st.lists(
    st.tuples(st.integers(1, 2 * WINDOW_MSGS), st.integers(1, 2 * WINDOW_MSGS), st.booleans()), max_size=20
)


@given(STEPS, st.integers(0, GREETING))
def test_a_peer_that_has_handled_everything_is_not_behind_for_want_of_another_message(steps, uncounted):
    """Each step: so many are sent, in turns of so many they are handled, and there is or is not something to send."""
    said: list[int] = []
    port = Port(CHILD, new_uuid(), lambda word: said.append(word.aux2), OWNER, rank=1)
    port.window = window = Window(reports=True, base=0)
    flow, sent, behind = Flow(MessageCounters()), uncounted, False
    in_flight = InFlight()
    in_flight.handled(sent, 0)
    for burst, turn, has_else in steps:
        sent += burst
        behind = behind or sent > in_flight.end
        while left := sent - uncounted - window.messages:
            flow.count_handled(port, window, min(left, turn))
            if has_else and port in flow.handled_due:
                flow.send_handled(port)
            for count in said:
                behind = in_flight.handled(sent, count) and behind
            said.clear()
        assert not behind
