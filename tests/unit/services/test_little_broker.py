"""The broker that the tests of services stand on has what services see of a real one, called the same way."""

import inspect
import typing
from collections.abc import Callable
from dataclasses import fields

from broker.services.context import Context, MakeCall
from tests.tables import for_each
from tests.unit.services.little_broker import LittleBroker

ELSEWHERE = {"on_leave", "subscribe_own", "published", "tree_changed", "stop"}
"""What the node, not a service, gives or calls."""
HINTS = typing.get_type_hints(Context)
METHODS = {name for name, _ in inspect.getmembers(Context, inspect.isfunction) if not name.startswith("_")}
NAMES = sorted(({field.name for field in fields(Context) if field.init} | METHODS) - ELSEWHERE)


def arguments(name: str) -> tuple[list[None], dict[str, None]] | None:
    """What a Context's ``name`` is called with; None: it is a value."""
    hint = HINTS.get(name)
    if typing.get_origin(hint) is Callable:
        return [None] * len(typing.get_args(hint)[0]), {}
    if name not in METHODS and hint is not MakeCall:
        return None
    method = getattr(Context, name) if name in METHODS else MakeCall.__call__
    _, *wanted = inspect.signature(method).parameters.values()
    keywords = [parameter.name for parameter in wanted if parameter.kind is parameter.KEYWORD_ONLY]
    return [None] * (len(wanted) - len(keywords)), dict.fromkeys(keywords)


@for_each("name", NAMES)
def test_it_has_what_services_see(name):
    ours, wanted = getattr(LittleBroker(), name), arguments(name)
    if wanted is not None:
        inspect.signature(ours).bind(*wanted[0], **wanted[1])
