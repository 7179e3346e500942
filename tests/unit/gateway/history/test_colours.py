"""Colours that are shown together are told apart, in light and dark."""

import itertools
import re
from pathlib import Path

import gateway
from tests.tables import for_each

DASHBOARD = Path(gateway.__file__).parent / "dashboard"
BLOCKS = (DASHBOARD / "panels" / "historyblocks.js").read_text()
TONES = dict(re.findall(r"(\w+): '(\w+)'", re.search(r"const TONES = \{(.*?)\};", BLOCKS, re.DOTALL)[1]))
PALETTE = re.findall(r"\w+", re.search(r"const PALETTE = \[(.*?)\];", BLOCKS)[1])
TOGETHER = {
    "kinds": [TONES[name] for name in ("request", "response", "event", "control", "nfp", "oslo")],
    "percentiles": re.findall(r"\['\w+_ns', '[^']+', '(\w+)'\]", BLOCKS),
    "statuses": [TONES[name] for name in ("completed", "failed", "expired", "cancelled", "running")],
    "priorities": [TONES[name] for name in ("debug", "audit", "info", "warn", "error", "critical", "sample")],
    "others": PALETTE,
}
LEAST = 0.085
"""Between two colours in Oklab; orange and the brown of warnings have 0.06 and look alike."""


def themes():
    """Each set of colours: name -> #rrggbb. Dark stands there twice: as the system has it, and chosen."""
    seen: dict[str, list[str]] = {}
    for key, value in re.findall(
        r"--([a-z]+): (#[0-9a-f]{6})", (DASHBOARD / "styles" / "tokens.css").read_text()
    ):
        seen.setdefault(key, []).append(value)
    for at, name in enumerate(("light", "dark", "dark, chosen")):
        yield name, {key: given[at] for key, given in seen.items() if len(given) == 3}


def oklab(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    x = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    y = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    z = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * x + 0.7936177850 * y - 0.0040720468 * z,
        1.9779984951 * x - 2.4285922050 * y + 0.4505937099 * z,
        0.0259040371 * x + 0.7827717662 * y - 0.8086757660 * z,
    )


@for_each(("theme", "colours"), list(themes()))
@for_each("group", TOGETHER)
def test_no_two_look_alike(theme, colours, group):
    for one, other in itertools.combinations(sorted(set(TOGETHER[group])), 2):
        pairs = zip(oklab(colours[one]), oklab(colours[other]), strict=True)
        distance = sum((a - b) ** 2 for a, b in pairs) ** 0.5
        assert distance >= LEAST, (theme, one, other, distance)


def test_kinds_and_percentiles_have_a_colour_each():
    for group, size in (("kinds", 6), ("percentiles", 4), ("statuses", 5), ("others", 8)):
        assert len(set(TOGETHER[group])) == len(TOGETHER[group]) == size, group
