"""Test clusters: a tree of brokers with a gateway on this machine, and faults in it (``headgate cluster``).

``shape``       how many brokers, who is whose parent, what they are called; pure
``files``       keys and settings of all members, in one folder
``compose``     the compose file of a shape, for those who want containers
``client``      a cluster as the verbs see it: its supervisor is started, asked, ended
``control``     how verbs talk to the supervisor
``supervisor``  the process that runs the members of a cluster
``members``     one member: looked at, paused, killed, moved; its process is a child of the supervisor
``relays``      the links between ranks, which hold back in a partition, without privileges
``state``       where clusters are kept between verbs

One cluster has one state folder, ``$XDG_STATE_HOME/headgate/clusters/NAME``; every verb is a process of its own that
finds there what it needs. Members are processes of this user. Containers are left to their engines: ``compose`` writes
what they need, and their own commands cause the faults.
"""
