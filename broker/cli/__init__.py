"""The ``headgate`` command: one file a verb; verbs are entry points, so that packages add their own.

    main      the dispatcher
    verbs     which verbs there are
    exits     exit codes, and which error means which
    options   the options that client verbs share; from typer to an exit code
    session   connect, run, leave
    address   which broker is meant
    screen    terminal, plain text, JSON lines

A verb is ``main(argv: list[str]) -> int``. ``broker`` and ``start`` become brokers, so they load neither typer nor
rich; the others may.
"""
