from __future__ import annotations

import html
import re
import shlex
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from headrace.domain import Budget, Cost, Limits, Manifest
from headrace.gateway.pages import page_handlers
from headrace.gateway.problem_kinds import KINDS
from headrace.gateway.problems import exception_handlers


class Address:
    def __init__(self, public_url: str = "") -> None:
        self.public_url = public_url
        self.max_hold = 55.0


def manifest(name: str, revision: str = "r1", **changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "name": name,
        "interface": "i1",
        "revision": revision,
        "description": "Finds `things`.\n\n<script>alert('x')</script>",
        "input_schema": {
            "type": "object",
            "required": ["text"],
            "properties": {"text": {"type": "string", "description": "What to <b>read</b>."}},
        },
        "output_schema": {"type": "array", "items": {"type": "number"}},
        "budget": Budget(),
        "limits": Limits(),
        "attempts": 2,
        "concurrency": 1,
        "cost": Cost(),
        "pool": "default",
        "examples": [{"text": "it's"}],
    }
    return Manifest(**values | changes)


def client(
    manifests: dict[str, Manifest],
    public_url: str = "",
    root_path: str = "",
    faults: dict[str, str] | None = None,
) -> TestClient[Litestar]:
    app = Litestar(
        page_handlers(
            lambda: manifests, lambda manifest: (faults or {}).get(manifest.name, ""), Address(public_url)
        ),
        exception_handlers=exception_handlers(public_url, lambda _: "r-1"),
        openapi_config=None,
    )
    return TestClient(app, base_url="http://pages.test", root_path=root_path)


@pytest.fixture
def manifests() -> dict[str, Manifest]:
    return {"find": manifest("find")}


@pytest.fixture
def site(manifests: dict[str, Manifest]) -> Iterator[TestClient[Litestar]]:
    with client(manifests) as made:
        yield made


class Loaded(HTMLParser):
    """What a browser would load by itself, and the links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.inline_styles = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []
        self.inline_styles += "style" in found
        assert not any(name.startswith("on") for name in found), found
        if tag == "a":
            self.links.append(found["href"] or "")
        else:
            self.loads += [value for name, value in attrs if name in {"src", "href"} and value]


@pytest.mark.parametrize("path", ["/docs", "/problems", "/problems/busy"])
def test_pages_load_nothing_and_link_to_what_exists(site: TestClient[Litestar], path: str) -> None:
    answer = site.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Loaded(answer.text)
    assert all(loaded.startswith("data:") for loaded in page.loads)
    assert page.inline_styles == 0
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids
        else:
            assert site.get(link).status_code == 200
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.parametrize("path", ["/docs", "/problems", "/problems/busy"])
def test_the_content_policy_lets_in_exactly_what_is_inline(site: TestClient[Litestar], path: str) -> None:
    answer = site.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        for content in re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL):
            assert f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'" in policy


def test_the_reference_shows_each_function(site: TestClient[Litestar]) -> None:
    text = site.get("/docs").text
    assert 'id="fn-find"' in text
    assert "Finds <code>things</code>." in text
    assert "array of number" in text
    for code in KINDS:
        assert f"/problems/{code}" in text


def test_the_items_of_a_stream_are_shown(manifests: dict[str, Manifest]) -> None:
    item = {"type": "object", "properties": {"piece": {"type": "string", "description": "A piece of it."}}}
    manifests["tell"] = manifest("tell", item_schema=item)
    with client(manifests) as site:
        page = site.get("/docs").text
    assert page.count("Items of its stream") == 1
    assert "A piece of it." in page


def test_times_that_cannot_be_reached_are_not_shown(manifests: dict[str, Manifest]) -> None:
    manifests["cut_off"] = manifest("cut_off", budget=Budget(sync=10, hard=60))
    manifests["capped"] = manifest("capped", budget=Budget(sync=400, hard=7))
    with client(manifests) as made:
        sections = made.get("/docs").text.split('<section id="fn-')
    facts = {
        section.partition('"')[0]: dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", section))
        for section in sections[1:]
    }
    assert facts["cut_off"]["answers within"] == "10 s"
    assert "runs at most" not in facts["cut_off"]
    assert facts["capped"]["answers within"] == "55 s"
    assert facts["capped"]["runs at most"] == "7 s"


def test_a_function_that_cannot_be_called_is_marked(manifests: dict[str, Manifest]) -> None:
    manifests["count"] = manifest("count")
    faults = {"count": "no-runner"}
    with client(manifests, faults=faults) as made:
        found = r'class="fault">.*?href="/problems/([a-z-]+)"'
        assert re.findall(found, made.get("/docs").text, re.DOTALL) == ["no-runner"]
        faults["count"] = "function-degraded"
        assert re.findall(found, made.get("/docs").text, re.DOTALL) == ["function-degraded"]
        faults.clear()
        assert re.findall(found, made.get("/docs").text, re.DOTALL) == []


def test_every_header_that_decides_is_listed(site: TestClient[Litestar]) -> None:
    table = site.get("/docs").text.split('<section id="headers">')[1].split("</table>")[0]
    listed = re.findall(r'<tr><td class="nowrap"><code>(.*?)</code>', table)
    assert {"Authorization", "Content-Type", "Accept", "Prefer", "Headrace-Deadline"} <= set(listed)
    assert "Idempotency-Key" in listed


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("root_path", ["", "/inner"])
def test_the_bare_address_leads_to_the_reference(
    manifests: dict[str, Manifest], method: str, root_path: str
) -> None:
    with client(manifests, root_path=root_path) as made:
        answer = made.request(method, "/", follow_redirects=False)
    assert answer.status_code == 307
    assert answer.headers["location"] == f"{root_path}/docs"


def test_what_authors_write_is_escaped(site: TestClient[Litestar]) -> None:
    text = site.get("/docs").text
    assert "<script>alert" not in text
    assert "<b>read</b>" not in text
    assert "&lt;b&gt;read&lt;/b&gt;" in text


def test_the_command_can_be_pasted_into_a_shell(site: TestClient[Litestar]) -> None:
    blocks = [
        html.unescape(block) for block in re.findall(r"<pre>(.*?)</pre>", site.get("/docs").text, re.DOTALL)
    ]
    (command,) = [shlex.split(block) for block in blocks if block.startswith("curl") and "-d" in block]
    assert command[:2] == ["curl", "http://pages.test/fn/find"]
    assert command[-2:] == ["-d", '{"text": "it\'s"}']


@pytest.mark.parametrize("host", ["evil.test/<script>", 'a"b', "x" * 300])
def test_a_strange_host_is_not_shown(site: TestClient[Litestar], host: str) -> None:
    answer = site.get("/docs", headers={"Host": host})
    assert host not in answer.text
    assert answer.status_code == 400 or "curl http://localhost/fn/find" in answer.text


def test_one_host_does_not_stick_to_the_page_for_others(site: TestClient[Litestar]) -> None:
    assert "curl http://one.test/fn" in site.get("/docs", headers={"Host": "one.test"}).text
    assert "one.test" not in site.get("/docs", headers={"Host": "two.test"}).text


def test_the_public_url_is_shown_where_it_is_set(manifests: dict[str, Manifest]) -> None:
    with client(manifests, "https://ai.example/x") as made:
        text = made.get("/docs").text
        assert "curl https://ai.example/x/fn/find" in text
        assert 'href="/x/problems/busy"' in text
        assert made.get("/openapi.json").json()["servers"] == [{"url": "https://ai.example/x"}]


def test_links_hold_the_root_path(manifests: dict[str, Manifest]) -> None:
    with client(manifests, root_path="/inner") as made:
        text = made.get("/docs").text
        assert 'href="/inner/openapi.json"' in text
        assert "curl http://pages.test/inner/fn/find" in text


def test_pages_follow_the_registry(site: TestClient[Litestar], manifests: dict[str, Manifest]) -> None:
    assert "/fn/find" in site.get("/openapi.json").json()["paths"]
    manifests["count"] = manifest("count")
    assert "/fn/count" in site.get("/openapi.json").json()["paths"]
    assert 'id="fn-count"' in site.get("/docs").text
    manifests["count"] = manifest("count", "r2", description="Counts anew.")
    assert "Counts anew." in site.get("/docs").text
    manifests.clear()
    assert "No functions yet" in site.get("/docs").text


def test_nothing_is_built_again_while_nothing_changes(
    site: TestClient[Litestar], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = site.get("/openapi.json").content, site.get("/docs").content
    monkeypatch.setattr("headrace.gateway.pages.build_document", None)
    monkeypatch.setattr("headrace.gateway.pages.describe", None)
    assert (site.get("/openapi.json").content, site.get("/docs").content) == first


@pytest.mark.parametrize("code", sorted(KINDS))
def test_every_problem_has_a_page(site: TestClient[Litestar], code: str) -> None:
    answer = site.get(f"/problems/{code}")
    assert answer.status_code == 200
    assert KINDS[code].title in html.unescape(answer.text)
    assert f">{KINDS[code].status}<" in answer.text


def test_an_unknown_problem_is_a_problem(site: TestClient[Litestar]) -> None:
    answer = site.get("/problems/no-such")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "not-found"


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/problems", "/problems/busy"])
def test_head_is_get_without_the_body(site: TestClient[Litestar], path: str) -> None:
    head, full = site.head(path), site.get(path)
    assert head.status_code == 200
    assert head.headers["content-type"] == full.headers["content-type"]
    assert head.headers["content-length"] == str(len(full.content))
