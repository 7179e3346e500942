from gateway.events.run import Run, sender
from tests.unit.gateway.events.audience import PlainLink, RunLink, event


def test_a_run_tells_its_ends_and_its_length():
    messages = [event(4), event(6)]
    run = Run(messages)
    assert (run.first, run.last, len(run), run.forms) == (4, 6, 2, {})
    assert "4 to 6" in repr(run)


def test_a_run_goes_whole_to_a_link_that_takes_runs():
    link, run = RunLink(), Run([event(1), event(2)])
    sender(link)(run)
    assert link.runs == [run]
    assert sender(link) == link.send_run


def test_a_run_goes_in_single_events_to_any_other_link():
    link = PlainLink()
    sender(link)(Run([event(1), event(2)]))
    assert link.sequences() == [1, 2]
