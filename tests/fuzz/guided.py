"""``python -m tests.fuzz.guided NAME [options of libFuzzer] FOLDER``: one entry under atheris, in a process of its own.

The product is loaded here for the first time, so that every branch of it is seen. ``tests.fuzz`` starts this and keeps
what is found; it is what a person calls.
"""

import logging
import sys

import atheris

LIMITS = ("-timeout=5", "-rss_limit_mb=4096", "-max_len=4096", "-print_final_stats=1")


def main() -> None:
    with atheris.instrument_imports(include=["broker", "gateway"], enable_loader_override=False):
        from tests.fuzz.targets import TARGETS

        target = TARGETS[sys.argv[1]]
        logging.disable(logging.CRITICAL)
        target.entry(b"")  # what it loads late is seen, too

    def one(data: bytes) -> None:
        target.entry(target.finish(data))

    atheris.Setup([sys.argv[0], *LIMITS, *sys.argv[2:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
