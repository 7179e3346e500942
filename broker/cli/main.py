"""``headgate VERB ...``: finds the verb, runs it, turns what it raises into one line and an exit code.

Nothing heavy is imported here: ``headgate broker`` goes through this file, and the broker process loads neither
typer nor rich.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

from broker import __version__
from broker.cli import exits
from broker.cli.verbs import BUILT_IN, SECTIONS, load, nearest, others
from broker.errors import ConfigError, HeadgateError
from broker.extras import EXTRA_OF, lacking
from broker.safe_text import text


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code; the console script ``headgate``.

    Args:
        argv: the words after ``headgate``; None takes those of this process.
    """
    _open_standard_streams()
    # Whoever ignores SIGCHLD has passed that on to us, and the kernel keeps no exit codes then: each child would seem
    # to have ended well.
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words[0] if words and words[0] in BUILT_IN else ""
    as_json = "--json" in words
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except BrokenPipeError:
        return _pipe_closed()
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except (HeadgateError, TimeoutError) as error:
        return exits.report(error, verb, as_json=as_json)
    except ModuleNotFoundError as error:
        if error.name not in EXTRA_OF:  # of one that is there a part is missing: it is broken
            raise
        return exits.report(ConfigError(lacking(error.name)), verb, as_json=as_json)
    except (OSError, UnicodeEncodeError) as error:
        odd = next((word for word in words if text(word) != word), "")
        if isinstance(error, UnicodeEncodeError) and not odd:
            raise
        return exits.report(_of_the_machine(error, odd), verb, as_json=as_json)
    return code


def _open_standard_streams() -> None:
    """Open /dev/null in place of standard streams that are closed: otherwise the next file or socket would get their
    numbers, and whatever is printed.
    """
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for the life of this process)


def _of_the_machine(error: OSError | UnicodeEncodeError, odd: str) -> HeadgateError:
    """The error to report for an OSError that no verb expected, or for a word that is no UTF-8."""
    from broker.obstacles import obstacle  # late: most verbs need it not

    logging.getLogger("headgate.cli").debug("not foreseen", exc_info=error)
    if isinstance(error, UnicodeEncodeError):
        return exits.UsageError(f"saw {odd!r}, expected UTF-8")  # not what was encoded: a key may be in it
    said = error.strerror or str(error)
    return obstacle(f"{error.filename}: {said}" if error.filename else said, error)


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("--help", "-h"):
        from broker.cli import pages  # late: textwrap is not for a broker to carry

        print(pages.fit(overview(), pages.width()))
        return exits.OK if words else exits.USAGE
    if words[0] in ("--version", "-V"):
        print(f"headgate {__version__}{_build(words[1:])}")
        return exits.OK
    run = load(words[0])
    if run is None:
        raise exits.UsageError(_unknown(words[0]))
    return run(words[1:]) or exits.OK


def _build(words: list[str]) -> str:
    if not words:
        return ""
    if words not in (["-v"], ["--verbose"]):
        raise exits.UsageError(f"--version takes -v alone, not {' '.join(words)!r}")
    from broker.cli.build import build  # late: it looks at files

    return f" ({build()})"


def _unknown(word: str) -> str:
    if word.startswith("-"):
        return f"{word!r} stands before the verb; options follow it: headgate VERB {word} ..."
    near = nearest(word, [*BUILT_IN, *others()])
    hint = f"did you mean {near}?" if near else "`headgate --help` lists the verbs"
    return f"{word!r} is no verb; {hint}"


def overview() -> str:
    """The text of ``headgate --help``."""
    lines = ["Usage: headgate VERB [OPTIONS] ...", "", "A message broker for the Flux message protocol.", ""]
    for heading, verbs in SECTIONS:
        lines += [f"{heading}:", *(f"  {verb:10} {what}" for verb, what in verbs.items()), ""]
    if added := others():
        lines += [
            "from other packages:",
            *(f"  {verb:10} ({package})" for verb, package in added.items()),
            "",
        ]
    lines += [
        "`headgate VERB --help` has the options and an example of each.",
        "",
        "The broker is --uri, else $HEADGATE_URI, else $FLUX_URI, else the local socket of this user.",
        "",
        "exit codes:",
        *(f"  {code:<8} {meaning}" for code, meaning in exits.MEANINGS),
        "`headgate start` ends with the exit code of its command, 128 + N if signal N ended it.",
    ]
    return "\n".join(lines)


def _pipe_closed() -> int:
    """End without a word: the reader of our output is gone (``headgate sub | head -1``)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exits.PIPE_CLOSED


if __name__ == "__main__":
    sys.exit(main())
