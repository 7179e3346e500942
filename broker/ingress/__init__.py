"""Who are you, and what may you do: pure rules of RFC 12.

``admission`` the access rules: a peer at connect -> refused, or credentials and a stamping policy
``stamping`` the userid and rolemask of each message as it comes in
"""
