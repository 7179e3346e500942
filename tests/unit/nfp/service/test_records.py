"""What a request is told of its job, and what is kept of that."""

from types import SimpleNamespace

from broker.nfp.names import Command
from broker.nfp.principal import of_flux
from broker.nfp.service.callers import Callers
from broker.nfp.service.payloads import tell_records
from broker.nfp.targets import ALL
from tests.unit.nfp.service.stand_in import FakeBroker, respond
from tests.unit.nfp.store.samples import run


def test_what_was_told_is_not_kept():
    """A request has one reader, and may follow its job for hours, as thousands of others do."""

    async def story():
        caller = Callers(FakeBroker()).find(of_flux(7, 2))
        about = SimpleNamespace(service="lab", uuid="u")
        with caller.follow("u", "lab", "go", ALL, b"{}") as job:
            records = tell_records(job)
            for text in (b"one", b"two", b"three"):
                respond(caller.peer, about, 200, text, Command.STREAM)
            assert job.events().ready == 3
            assert [(await anext(records))["type"] for _ in range(3)] == ["stream"] * 3
            assert job.events().ready == 0
            respond(caller.peer, about, 202, {"status": "CANCELLED", "workers": []})
            assert [record async for record in records] == []

    run(story())
