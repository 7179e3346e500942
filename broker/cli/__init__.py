"""The ``headgate`` command: one file a verb; other packages add theirs by entry points.

    main           the dispatcher; ``build`` which build runs
    verbs          which verbs there are: ``attr`` ``broker`` ``config`` ``doctor`` ``health`` ``keygen`` ``log``
                   ``ping`` ``pub`` ``rpc`` ``services`` ``start`` ``stats`` ``status`` ``sub`` ``trace``, a file each;
                   those of a verb that has verbs
    exits          exit codes, and which error means which
    options        the options that client verbs share; from typer to an exit code
    parsing        the options of verbs that become servers, in the same look, without typer; ``pages`` how wide help is
    completion     what a shell offers while a command is typed
    session        connect, run, leave
    address        which broker is meant
    content        payloads as given and as shown, values and KEY=VALUE words
    screen         terminal, plain text, JSON lines; the same picture again and again; progress
    tree           shape, health and hosts of an instance
    diagnosis      the steps that ``doctor`` tries
    traced         calls and events from what brokers tell of messages, for ``trace``
    callrates      how calls fare, for ``stats --services``
    settings_text  the settings as text
    nfp            ``headgate nfp``: the NORFAB protocol, a file each of its verbs
    oslo           ``headgate oslo``: the transport zmq:// of oslo.messaging, likewise
    journal        ``headgate journal``: what was recorded, likewise
    wings          what of NFP and oslo runs beside rank 0

A verb is ``main(argv: list[str]) -> int``. ``broker`` and ``start`` become brokers, so they load neither typer nor
rich; the others may.
"""
