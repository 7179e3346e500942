"""Ports, files, names and reasons, as the seed gives them."""

from broker.oslo.names import (
    DIRECTORY_PORT,
    PORTS,
    PRIORITIES,
    REASONS,
    Pipeline,
    Reason,
    control_file,
    entry_file,
    exit_file,
)


def test_the_ports_are_those_of_the_seed():
    ports = {str(pipeline): port for pipeline, port in PORTS.items()}
    assert ports == {"call": 9501, "fanout": 9502, "notify": 9503, "cast": 9504}, (
        "Z20: ports 9501 to 9504, configurable"
    )
    assert DIRECTORY_PORT not in PORTS.values()


def test_every_pipeline_has_files_of_its_own():
    files = [make(pipeline) for pipeline in Pipeline for make in (control_file, entry_file, exit_file)]
    assert len(set(files)) == len(files)
    assert control_file(Pipeline.CALL) == "call.ctl"
    assert entry_file(Pipeline.NOTIFY) == "notify.in"
    assert exit_file(Pipeline.FANOUT) == "fanout.pub"


def test_every_reason_has_a_text_that_says_something_else():
    assert set(REASONS) == set(Reason)
    assert len(set(REASONS.values())) == len(Reason)


def test_priorities_are_the_seven_of_the_notifier():
    assert sorted(PRIORITIES) == ["audit", "critical", "debug", "error", "info", "sample", "warn"]
