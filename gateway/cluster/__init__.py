"""Test clusters: a tree of brokers with a gateway on this machine, and faults in it (``headgate cluster``).

``shape``       how many brokers, who is whose parent, what they are called; pure
``files``       keys and settings of all members, in one folder
``engine``      what an engine does, and which one this machine has
``processes``   the engines of bare processes: verbs ask a supervisor
``supervisor``  the process that runs the members of a cluster
``members``     one member: started, looked at, frozen, killed, started again
``children``    child processes that die with the supervisor
``links``       what lies between the ranks, and which of it a partition cuts
``relays``      partitions without privileges: relays that hold back
``network``     partitions by the kernel: a network namespace for each rank
``control``     how verbs talk to the supervisor
``state``       where clusters are kept between verbs
``lines``       the lines of a log file, also as it grows
``containers``  the engines podman and docker
``inspection``  what an engine says of a container; pure
``compose``     the compose file of a shape

One cluster has one state folder, ``$XDG_STATE_HOME/headgate/clusters/NAME``; every verb is a process of its own that
finds there what it needs.
"""
