"""The dashboard and its client in a real browser. A package, so that one browser serves all of it."""
