"""A search of a few lines, for fake brokers; the real one is tested with the dispatcher."""

from collections import Counter


class Found:
    """What ``JobSearch`` has at its end, of views, the newest last; ``slices`` steps are needed for it."""

    def __init__(self, views, which, may_see, limit, tell, slices=1):
        meant = [
            view
            for view in reversed(views)
            if may_see(view.holder)
            and which.holder in ("", view.holder)
            and (not which.states or view.state in which.states)
        ]
        self.which = which
        self.found = [tell(view) for view in meant[:limit]]
        self.total = len(meant)
        self.states = Counter(view.state for view in meant)
        self.services = Counter(view.service for view in meant)
        self._slices = slices

    def steps(self):
        for _ in range(self._slices - 1):
            yield
