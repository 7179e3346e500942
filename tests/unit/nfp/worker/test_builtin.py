"""What users of NorFab look for in every worker: logs, a watchdog, fetched files, templates, a hook at the end."""

import asyncio
import contextlib
import logging
import os

import pytest

from broker.nfp import bodies
from broker.nfp.client.client import FETCHED
from broker.nfp.client.fetch import delete
from broker.nfp.names import Command
from tests.live.nfp import running, section
from tests.unit.nfp.peer.raw_broker import PATIENCE_S, RawBroker, until
from tests.unit.nfp.worker.rig import confirm, final, made, post, result, working
from tests.unit.nfp.worker.test_house import at_work


def ask(task, prepare=lambda worker: None, /, *, inventory=None, **kwargs):
    """The result of one job at a worker of ours."""

    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, store=False)
            worker.starting(lambda it: it.inventory.update(inventory or {}))
            async with working(worker, broker):
                prepare(worker)
                post(broker, "u1", task, **kwargs)
                return result(await final(broker))

    return asyncio.run(main())


# -- logs ------------------------------------------------------------------------------------------


def test_the_latest_records_of_the_process():
    def write(_worker):
        logging.getLogger("app.part").warning("first")
        logging.getLogger("other").error("second")

    records = ask("get_logs", write)["result"]
    assert [(each["level"], each["message"]) for each in records[-2:]] == [
        ("WARNING", "first"),
        ("ERROR", "second"),
    ]
    assert (records[-1]["role"], records[-1]["name"]) == ("worker", "w1")
    assert [each["message"] for each in ask("get_logs", write, logger="app")["result"]] == ["first"]
    assert [each["message"] for each in ask("get_logs", write, level="error", last=1)["result"]] == ["second"]
    assert ask("get_logs", write, until="2000")["result"] == []


def test_a_process_without_handlers_goes_on_showing_what_it_showed(monkeypatch, capsys):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    ask("get_logs", lambda _worker: logging.getLogger("app").warning("seen"))
    assert "seen" in capsys.readouterr().err
    assert root.handlers == [logging.lastResort]


# -- the watchdog ----------------------------------------------------------------------------------


def test_its_configuration_is_what_the_inventory_says():
    usual = {"watchdog_interval": 30, "memory_threshold_mbyte": 1000, "memory_threshold_action": "log"}
    assert ask("get_watchdog_configuration")["result"] == usual
    said = {"watchdog_interval": 5, "memory_threshold_mbyte": "much", "memory_threshold_action": "shutdown"}
    found = ask("get_watchdog_configuration", inventory=said)["result"]
    assert found == {**said, "memory_threshold_mbyte": 1000}


@pytest.mark.parametrize("action", ["log", "shutdown"])
def test_a_process_that_takes_too_much(caplog, action):
    async def main():
        with RawBroker(opens=True) as broker:
            worker = made(broker, store=False)
            about = {
                "watchdog_interval": 1e-3,
                "memory_threshold_mbyte": 1e-3,
                "memory_threshold_action": action,
            }
            worker.starting(lambda it: it.inventory.update(about))
            async with working(worker, broker, ready=False):
                await until(lambda: worker.watchdog_runs)
                return worker.ending

    assert asyncio.run(main()) == ("shutdown" if action == "shutdown" else "")
    assert "w1: takes" in caplog.text


# -- fetched files and templates -------------------------------------------------------------------


def test_fetched_files_are_removed_by_a_pattern_below_their_folder(tmp_path):
    for name in ("a/x.txt/11/x.txt", "a/y.txt/22/y.txt", "b/z.txt/33/z.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path.parent / "kept").touch()
    assert delete(tmp_path, "a/x*") == {"deleted": [str(tmp_path / "a/x.txt")], "errors": []}
    assert delete(tmp_path, "nothing*") == {"deleted": [], "errors": []}
    for pattern in ("", ".", "./", "../kept", "a/../../kept", str(tmp_path.parent / "kept")):
        with pytest.raises(ValueError, match="below the folder"):
            delete(tmp_path, pattern)
    assert len(delete(tmp_path, "*")["deleted"]) == 2
    assert (list(tmp_path.iterdir()), (tmp_path.parent / "kept").exists()) == ([], True)


def test_neither_the_folder_of_fetched_files_itself_is_removed_nor_what_a_link_leads_to(tmp_path):
    outside, fetched = tmp_path / "outside", tmp_path / "fetched"
    for folder in (outside / "deep", fetched / "a"):
        folder.mkdir(parents=True)
        (folder / "kept").touch()
    (fetched / "link").symlink_to(outside)
    for pattern in ("link/*", "link/deep/kept", "*/deep"):
        assert delete(fetched, pattern) == {"deleted": [], "errors": []}
    everything = {"a/kept", "a", "link"}
    assert set(delete(fetched, "**")["deleted"]) == {str(fetched / name) for name in everything}
    assert (os.listdir(fetched), (outside / "deep" / "kept").exists()) == ([], True)


def test_templates_are_rendered_from_text_and_from_shared_files_and_the_files_can_be_removed(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "ntp.j2").write_text("ntp {{ server }}")

    async def main():
        async with running(section(tmp_path, files=str(shared))) as live:
            from broker.nfp.client import NfpClient
            from broker.nfp.worker import Worker

            place = {"broker": live.endpoints[0], "server_key": live.server_key}
            worker = Worker("s", name="w1", state_dir=tmp_path / "state", **place)
            async with at_work(worker), NfpClient("", **place) as nfp:

                async def rendered(**kwargs):
                    return (await nfp.run("s", "jinja2_render_templates", kwargs=kwargs))["w1"]

                variables = {"server": "10.0.0.1", "name": "r1"}
                both = await rendered(templates=["hostname {{ name }}", "nf://ntp.j2"], context=variables)
                confined = await rendered(templates="{{ ().__class__.__base__.__subclasses__() }}")
                gone = (await nfp.run("s", "delete_fetched_files", kwargs={"filepath": "*"}))["w1"]["result"]
                return both, confined, gone

    both, confined, gone = asyncio.run(main())
    assert both["result"] == "hostname r1\nntp 10.0.0.1"
    assert confined["failed"]
    assert "unsafe" in confined["errors"][0]
    assert gone == {"deleted": [str(tmp_path / "state" / FETCHED / "ntp.j2")], "errors": []}


# -- the hook --------------------------------------------------------------------------------------


def test_what_stops_with_a_worker_stops_when_its_jobs_are_done_and_however_it_ends(caplog):
    seen = []

    async def main(end):
        with RawBroker(opens=True) as broker:
            worker = made(broker)
            worker.starting(lambda it: seen.append(("starting", it.name)))

            @worker.task
            async def last():
                await asyncio.sleep(0.05)
                seen.append("worked")

            @worker.stopping
            def fails(_worker):
                raise OSError("the pool is gone")

            worker.stopping(lambda it: seen.append(("stopping", it.name)))
            running = asyncio.get_running_loop().create_task(worker.run())
            await broker.take_only(Command.READY)
            post(broker, "u1", "last")
            await until(lambda: worker._session.open or worker._session.done)
            end(worker, running)
            if not running.cancelling():
                await final(broker)
                confirm(broker, "u1", state=bodies.RECORDED)  # it waits for that
            await asyncio.wait([running], timeout=PATIENCE_S)

    asyncio.run(main(lambda worker, _running: worker.stop()))
    assert seen == [("starting", "w1"), "worked", ("stopping", "w1")]
    assert "the pool is gone" in caplog.text
    seen.clear()
    asyncio.run(main(lambda _worker, running: running.cancel()))
    assert seen[-1] == ("stopping", "w1")


def test_what_never_started_does_not_stop(tmp_path):
    (tmp_path / "file").touch()

    async def main():
        with RawBroker() as broker:
            worker = made(broker, state_dir=tmp_path / "file" / "x")
            worker.stopping(lambda _worker: pytest.fail("it has not started"))
            with contextlib.suppress(Exception):
                await worker.run()

    asyncio.run(main())
