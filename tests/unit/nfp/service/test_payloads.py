"""What a request asks for."""

from broker.nfp.service.payloads import read_job


def test_a_service_may_have_periods_and_the_last_word_is_the_task():
    what = read_job("nfp.mmi.service.broker.show_workers", None)
    assert (what.service, what.task) == ("mmi.service.broker", "show_workers")
