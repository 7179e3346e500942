"""The dashboard's files: types, caching, nothing outside the folder."""

import asyncio
import json

from gateway.web.static import TYPES, Dashboard
from tests.tables import for_each


def test_the_page_and_its_parts():
    files = Dashboard().files
    assert {"index.html", "login.html", "client.js"} <= set(files)
    assert all(file.content_type in TYPES.values() for file in files.values())


def test_pages_hold_no_inline_script():
    for name, file in Dashboard().files.items():
        if name.endswith(".html"):
            text = file.body.decode()
            assert "<script>" not in text
            assert " on" + "click=" not in text
            assert "javascript:" not in text


async def test_modules_are_served_as_modules(site):
    answer = await site.get("/client.js", None)
    assert answer.status == 200
    assert answer.content_type == "text/javascript"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_browser_that_has_it_gets_nothing_again(site):
    answer = await site.get("/client.js", None)
    etag = answer.headers["ETag"]
    assert answer.headers["Cache-Control"] == "no-cache"
    for said in (etag, f'W/{etag}, "x"', "*"):
        answer = await site.get("/client.js", None, headers={"If-None-Match": said})
        assert answer.status == 304
        assert await answer.read() == b""
    answer = await site.get("/client.js", None, headers={"If-None-Match": '"x"'})
    assert answer.status == 200


@for_each(
    "path",
    [
        "/../settings/schema.py",
        "/..%2fsettings%2fschema.py",
        "/%2e%2e/settings/schema.py",
        "/client/../../settings/schema.py",
        "/./../serve.py",
        "//etc/passwd",
        "/client",
        "/client/",
        "/index.html%00.js",
        "/__init__.py",
    ],
)
async def test_nothing_outside_the_folder(site, path):
    """Through a raw socket: clients tidy such paths up before they send them."""
    host, port = site.url.removeprefix("http://").split(":")
    found = await ask(host, int(port), path)
    assert found.split(b" ")[1] in (b"404", b"400")
    assert b"msgspec" not in found


async def ask(host, port, path):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
    try:
        return await reader.read()
    finally:
        writer.close()


def test_another_folder(tmp_path):
    (tmp_path / "index.html").write_text("<p>hi")
    (tmp_path / "secret.key").write_text("no")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data.json").write_text(json.dumps({}))
    assert set(Dashboard(tmp_path).files) == {"index.html", "sub/data.json"}
