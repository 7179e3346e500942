"""Who are you: pure rules of RFC 12. What you may do is for whoever answers: ``broker.serving.runner``, say.

``admission`` the access rules: a peer at connect -> refused, or credentials and a stamping policy
``stamping`` the userid and rolemask of each message as it comes in
"""
