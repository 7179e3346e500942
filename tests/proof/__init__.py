"""Proof under faults: a tree of seven under load and a random schedule of faults, judged from what both ends wrote.

The driving half builds the world and plays the schedule; the judging half knows nothing of the product.

    layout      who is there and where, and what the parties do                   (pure)
    papers      keys, certificates and configuration files
    member      one process: start, stop, kill, what it uses
    world       seven brokers, gateway, wings and Redis in network namespaces: start, stop, kill
    parties     processes that make load and write down what they sent and got
    faults      each fault: apply it, take it away, what it touches
    schedule    seed -> faults and their times                                    (pure)
    drive       one run: world up, load on, schedule played, quiet, load off
    returns     scenes of events that outlive gateways and rank 0, before many dashboards

    record      the log: what a line says, and its writer
    scribe      the driver's part of it
    logs        its files, and their reader
    checker     rules C1 to C14 over the logs of a run                            (knows nothing of the product)
    mutants     the product broken on purpose: whether that is found
    shrink      the smallest part of a schedule that still fails                  (pure)
    report      what a run proved, as JSON, and the table of docs/reliability.md
"""
