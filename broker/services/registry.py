"""All built-in services: the classes with a name that the files of this folder have. A new service is a new file."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from broker import services
from broker.services.service import Service


def built_in() -> list[type[Service]]:
    """The class of every built-in service, by file."""
    modules = [
        import_module(f"{services.__name__}.{found.name}")
        for found in pkgutil.iter_modules(services.__path__)
    ]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        # what a file imports is another file's
        if isinstance(kind, type)
        and issubclass(kind, Service)
        and kind.__module__ == module.__name__
        and kind.name
    ]
