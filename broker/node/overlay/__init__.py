"""The tree: brokers joined by the overlay protocol of deployed flux-core, so that either may stand above the other.

``overlay``   the facade: listen for children, join the parent, views, leave
``config``    where to listen and dial, who we are, and how long to wait
``hello``     the first message of a child and its answer                      (pure)
``control``   the three messages that only direct neighbours exchange      (pure)
``children``  the parent's side: greeting, hello, goodbye, control, loss
``parent``    the child's side: dial, hello, loss, joining again
``status``    what a subtree's health is made of                               (pure)
``liveness``  who has been silent for how long                                 (pure)
"""
