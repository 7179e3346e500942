"""What a verb needs that this environment has not: ``headgate-core`` alone brings brokers, proxies and the driver.

``pip install headgate`` brings all of it; ``pyproject.toml`` says why there are two distributions.
"""

from __future__ import annotations

from typing import Final

EXTRA_OF: Final = {
    "aiohttp": "gateway",
    "cryptography": "gateway",
    "jinja2": "nfp",
    "jwt": "gateway",
    "prometheus_client": "gateway",
    "rich": "cli",
    "typer": "cli",
    "websockets": "gateway",
    "yaml": "nfp",
}
"""Module of another project -> the extra of ``headgate-core`` that brings it."""


def lacking(error: ModuleNotFoundError) -> str:
    """What to install, as a sentence; "" when the module is none of ``EXTRA_OF``."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(module)
    if extra is None:
        return ""
    return f"{module} is not installed: pip install headgate, or 'headgate-core[{extra}]' for as much as this needs"
