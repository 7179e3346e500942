"""Tables of states, in h11's form: state -> event -> the next state, and one function that reads them (pure).

What is not in a table cannot happen: it raises, and nothing has changed.
"""

# compiled: mypyc

from __future__ import annotations

from typing import TypeVar

State = TypeVar("State", bound=str)
Step = TypeVar("Step", bound=str)
Table = dict[str, dict[str, str]]


class IllegalEvent(Exception):
    """Something happened that cannot happen in this state: we are wrong, not a peer."""


def following(table: dict[State, dict[Step, State]], state: State, event: Step) -> State:
    """Return the state that ``event`` leads to.

    Raises:
        IllegalEvent: ``event`` is not in the table for this state.
    """
    after = table[state].get(event)
    if after is None:
        raise IllegalEvent(f"{event} while {state}, expected one of {', '.join(table[state]) or 'none'}")
    return after
