"""What a web client is to the gateway, and everything it may do here.

``session``              the corridor of one client: what it sends, stamped and forwarded; what it is sent
``decisions``            one kind of request or event: where it goes, and the header it leaves with
``calls``                its open calls, and whom to tell when it ends
``any_rank_retry``       requests to any rank whose service is at another one
``requests``             requests that are answered here: ``event.*``, ``service.*``, ``gateway.*``
``provider``             requests it was delivered as a service, and what it may answer
``rights``               what a session may, asked again when its roles or the rules change
``authorization_filter`` in front of it: what the authorisation hook is asked
``delivery_filter`` behind it: which events it gets, as the hook says
``registrations``        which session serves which name, as the upstream knows it
``resume``               a client that comes back: what it missed, then live
``replays``              turns and allowances of those who come back
``publishers``           who publishes more than its share, and waits
``answers``              what the gateway itself says: responses it makes, refusals
``controls``             control objects: refresh, resume, ping; the welcome
``deadlines``            credentials that expire, subscriptions and resumptions that wait
``service``              the methods of the service ``gateway``
``topics``               of it what is about topics: their newest events, who listens
``listing``              sessions and counters, as these methods show them
``logins``               two of them: where somebody is logged in with a browser, and the end of that
``counters``             what was done, in numbers
``refusals``             who tried what without the right
``reports``              the same, told to the broker's journal
``event_traces``         each event at each subscriber, for owners who look on
"""
