"""What a part needs that the base does not bring: the extra that has it, and what a person types for that.

The base is msgspec, PyNaCl and pyzmq: brokers, proxies and the driver ``zmq://``. ``headgate[all]`` is the whole
command.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from typing import Final

EXTRA_OF: Final = {
    "aiohttp": "all",
    "cryptography": "all",
    "deltalake": "history",
    "isal": "journal",
    "jinja2": "all",
    "jwt": "all",
    "lz4": "journal",
    "numpy": "journal",
    "oslo_messaging": "oslo",
    "pandas": "spark",
    "pyarrow": "history",
    "pyspark": "spark",
    "redis": "redis",
    "rich": "all",
    "typer": "all",
    "websockets": "all",
    "yaml": "all",
    "zstandard": "journal",
}
"""Module of another project -> the extra that brings it."""
_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


PARTS_OF_SPARK: Final = frozenset({"journal", "history"})
"""Extras that ``spark`` brings with it."""


def absent(modules: Iterable[str]) -> list[str]:
    """Those of some modules that are not there; none of them is loaded."""
    return [each for each in modules if not _is_there(each)]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def lacking(*modules: str) -> str:
    """What is said where modules of ``EXTRA_OF`` are missing, all of them at once."""
    wanted = {EXTRA_OF[each] for each in modules}
    if "spark" in wanted:
        wanted -= PARTS_OF_SPARK
    verb = "is" if len(modules) == 1 else "are"
    return f"{', '.join(modules)} {verb} not installed: {install(','.join(sorted(wanted)))}"


def install(extra: str) -> str:
    """What to type, so that whatever runs here has an extra.

    What runs from a clone is installed from there. Everywhere else Headgate is installed already, and pip adds what the
    extra asks for, whether or not an index has Headgate; the environment of pipx has no pip that is on the path, and in
    one that is not activated ``pip`` would be the pip of another.
    """
    import shutil  # with three compressors behind it, which who lacks nothing does not need

    if os.path.isfile(os.path.join(_ROOT, "pyproject.toml")):
        return f"pip install '{'.' if os.path.samefile(_ROOT, os.curdir) else _ROOT}[{extra}]'"
    own = os.path.join(sys.prefix, "bin", "pip")
    pip = "pip" if shutil.which("pip") == own else own
    if os.path.isfile(os.path.join(sys.prefix, "pipx_metadata.json")):
        pip = "pipx runpip headgate"
    return f"{pip} install 'headgate[{extra}]'"
