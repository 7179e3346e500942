"""What owners and admins do with a gateway and see of it: the service ``gateway``.

``service``  its methods: for web clients, for whoever is behind the upstream, and for the other processes
``listing``  sessions and counters, as these methods show them
``topics``   of it what is about topics: their newest events, who listens
``logins``   two of them: where somebody is logged in with a browser, and the end of that
``denials``  who tried what without the right: kept, logged, told to the broker's journal
"""
