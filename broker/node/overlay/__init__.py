"""The tree: brokers joined by the overlay protocol of deployed flux-core, so that either may stand above the other.

``overlay``   the facade: settings and callbacks, listen for children, join the parent, views, leave
``hello``     the first message of a child and its answer                      (pure)
``control``   the three messages that only direct neighbours exchange, and the status that they carry (pure)
``children``  the parent's side: greeting, hello, goodbye, control, loss
``parent``    the child's side: dial, hello, loss, joining again
``liveness``  how long a neighbour has been silent, and what follows
"""
