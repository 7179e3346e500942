"""A warehouse is for whoever made it."""

from gateway.pipeline.warehouse import Warehouse


def test_nobody_else_may_enter(tmp_path):
    place = tmp_path / "warehouse"
    with Warehouse(place).lock("ingest"):
        assert place.stat().st_mode & 0o777 == 0o700
        assert (place / ".lock").stat().st_mode & 0o777 == 0o600
