"""The gateway's verbs, one file each.

``gateway``      serve web clients in front of a broker
``up``           brokers and a gateway on this machine, with a login link
``cluster``      test clusters and faults in them, its verbs by what they are about
``token``        bearer tokens
``login``        one-time login links
``tls``          a self-signed certificate
``pipeline``     journals -> tables -> charts, a file each of its verbs
``companions``   programs beside ``up``: the pipeline of its journal, the demo
``whereabouts``  which gateway a command is about
"""
