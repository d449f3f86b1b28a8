"""What a remote server is sent, how its answer is read, when it is asked again, and what goes wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import traceback

import pytest
from harness.openai_server import openai_server
from harness.site import free_port
from harness.upstream_calls import SAY, call_for, chatted, failure, said, with_upstream

from headrace import PermanentError, TransientError
from headrace.upstream import Piece, Upstream, Usage

BUSY = '{"error": {"message": "too many requests"}}'

# ---------------------------------------------------------------------- what is sent and read


def test_a_whole_answer(remote):
    reply = chatted(remote)
    assert (reply.text, reply.finish_reason, reply.usage) == ("one two three", "stop", Usage(3, 3))
    (request,) = remote.requests
    assert request.path == "/v1/chat/completions"
    assert "authorization" not in request.headers
    assert request.body == {
        "model": "m",
        "messages": said("one two three"),
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_pieces_come_as_they_are_generated(remote):
    async def read(server: Upstream) -> list[Piece]:
        return [piece async for piece in server.stream(call_for(), SAY, max_tokens=5, temperature=None)]

    pieces = with_upstream(remote, read)
    assert pieces == [Piece("one"), Piece(" two"), Piece(" three"), Piece("", "stop", Usage(3, 3))]
    assert remote.requests[0].body["max_tokens"] == 5
    assert "temperature" not in remote.requests[0].body


def test_line_separators_and_words_of_other_scripts_come_through(remote):
    text = "a\u2028b\u0085c 水\U0001f642 e\u0301"
    assert chatted(remote, text).text == text


def test_vectors_come_in_the_order_of_their_texts(remote):
    vectors = with_upstream(remote, lambda server: server.embeddings(call_for(), ["a", "bcd"]))
    assert vectors == [[1.0, 0.0], [3.0, 1.0]]
    assert remote.requests[0].body == {"model": "m", "input": ["a", "bcd"], "encoding_format": "float"}


def test_the_key_is_sent_and_read_from_the_environment_when_asked(remote, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-1")
    chatted(remote, key_setting="MY_KEY")
    assert remote.requests[0].headers["authorization"] == "Bearer sk-1"
    monkeypatch.delenv("MY_KEY")
    assert "MY_KEY" in str(failure(remote, PermanentError, key_setting="MY_KEY"))


def test_a_key_from_a_file_with_a_line_end_is_the_key(remote, monkeypatch):
    monkeypatch.setenv("MY_KEY", " sk-1\r\n")
    chatted(remote, key_setting="MY_KEY")
    chatted(remote, key="sk-1\n")
    assert [request.headers["authorization"] for request in remote.requests] == ["Bearer sk-1"] * 2


@pytest.mark.parametrize("key", ["sk-\u00fc", "sk-1\nX: y", "sk-1 sk-2"])
def test_what_can_be_no_key_is_shown_nowhere(remote, monkeypatch, key):
    monkeypatch.setenv("MY_KEY", key)
    error = failure(remote, PermanentError, key_setting="MY_KEY")
    assert str(error) == "MY_KEY holds characters that no key can have"
    assert "sk" not in "".join(traceback.format_exception(error)).replace("ask", "")
    with pytest.raises(ValueError, match="no key") as caught:
        Upstream(remote.url, key=key)
    assert key not in str(caught.value)
    assert remote.requests == []


def test_usage_is_not_asked_for_where_the_server_refuses_that(remote):
    assert chatted(remote, counts=False).text == "one two three"
    assert "stream_options" not in remote.requests[0].body


@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"patience": -1.0},
        {"patience": float("nan")},
        {"connect": 0.0},
        {"connect": float("inf")},
    ],
)
def test_numbers_without_sense_are_refused_where_they_are_declared(options):
    with pytest.raises(ValueError, match="retries and patience"):
        Upstream("http://a/v1", **options)


def test_proxies_of_the_environment_are_not_used(remote, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert chatted(remote).text == "one two three"


@pytest.mark.parametrize(
    "url", ["", "localhost:80/v1", "ftp://a/v1", "http://", "http://a/v1?x=1", "http://u:p@a/v1"]
)
def test_what_is_no_address_is_refused_where_it_is_declared(url):
    with pytest.raises(ValueError, match="URL"):
        Upstream(url)


def test_options_that_are_its_own_are_refused(remote):
    with pytest.raises(TypeError, match="stream"):
        with_upstream(remote, lambda server: server.chat(call_for(), SAY, stream=False))


def test_the_http_client_is_imported_by_its_first_request_only():
    code = (
        "import sys; from headrace.upstream import Upstream; "
        "Upstream('http://a/v1'); print('httpx2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---------------------------------------------------------------------- once more


def test_a_busy_server_is_asked_again_when_it_says(remote):
    remote.answers += [(429, {"Retry-After": "0.1"}, BUSY), (503, {}, "")]
    began = time.monotonic()
    assert chatted(remote).text == "one two three"
    assert len(remote.requests) == 3
    assert time.monotonic() - began >= 0.1


def test_one_that_is_busy_for_longer_than_the_patience_is_left_alone(remote):
    remote.answers.append((429, {"Retry-After": "30"}, BUSY))

    async def twice(server: Upstream) -> list[float]:
        found: list[float] = []
        for _ in range(2):
            with pytest.raises(TransientError) as caught:
                await server.chat(call_for(60), SAY)
            assert caught.value.retry_after is not None
            found.append(caught.value.retry_after)
        return found

    first, second = with_upstream(remote, twice)
    assert first == 30
    assert 25 < second < 30
    assert len(remote.requests) == 1  # the second wasn't even asked


def test_a_wait_that_the_call_has_no_time_for_isnt_begun(remote):
    remote.answers.append((503, {"Retry-After": "1.5"}, ""))
    with pytest.raises(TransientError):
        with_upstream(remote, lambda server: server.chat(call_for(1.0), SAY))
    assert len(remote.requests) == 1


def test_it_gives_up_after_so_many_times(remote):
    remote.answers += [(503, {}, "")] * 5
    assert failure(remote, TransientError, retries=1).retry_after is None
    assert len(remote.requests) == 2


def test_a_server_that_isnt_there_is_tried_again_until_it_is():
    port = free_port()
    with openai_server() as real:

        async def comes_late() -> str:
            server = Upstream(f"http://127.0.0.1:{port}/v1", retries=8)
            asking = asyncio.create_task(server.chat(call_for(), SAY))
            await asyncio.sleep(0)  # its first try may come before, or after: both are right
            listening = await asyncio.start_server(real.serve, "127.0.0.1", port)
            try:
                return (await asking).text
            finally:
                await server.aclose()
                listening.close()

        assert asyncio.run(comes_late()) == "one two three"


def test_one_that_stays_away_is_a_passing_failure():
    async def ask() -> None:
        server = Upstream(f"http://127.0.0.1:{free_port()}/v1", retries=1)
        with pytest.raises(TransientError, match="can't be reached"):
            await server.chat(call_for(), SAY)
        await server.aclose()

    asyncio.run(ask())


CUT = ['data: {"choices": [{"index": 0, "delta": {"content": "on"}}]}', ""]


def test_nothing_is_asked_again_after_the_first_piece(remote):
    remote.answers.append(CUT)
    assert "before it was complete" in str(failure(remote, TransientError))
    assert len(remote.requests) == 1


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (
            (400, {}, '{"error": {"message": "max_tokens is too large"}}'),
            PermanentError,
            "max_tokens is too large",
        ),
        ((404, {}, '{"error": {"message": "model \'m\' not found"}}'), PermanentError, "model 'm' not found"),
        ((404, {}, "<html>no such page</html>"), PermanentError, "doesn't have this model or address (404)"),
        ((422, {}, '{"detail": "no messages"}'), PermanentError, "no messages"),
        ((500, {}, '{"error": "out of memory"}'), TransientError, "out of memory"),
        ((302, {"Location": "http://elsewhere/"}, ""), PermanentError, "(302)"),
        ((200, {"Content-Type": "text/html"}, "<html>"), PermanentError, "text/html instead of a stream"),
        (["data: {not json", ""], PermanentError, "isn't a stream of OpenAI's protocol"),
        (["data: [1, 2]", ""], PermanentError, "isn't a stream of OpenAI's protocol"),
        (['data: {"choices": "none"}', ""], PermanentError, "isn't a stream of OpenAI's protocol"),
        (["data: " + "x" * 2**21], PermanentError, "too long"),
        (
            ['data: {"error": {"message": "context length", "code": 400}}', ""],
            PermanentError,
            "context length",
        ),
        (['data: {"error": {"message": "the engine died"}}', ""], TransientError, "the engine died"),
        ([], TransientError, "before it was complete"),
    ],
)
def test_failures_say_what_the_server_said(remote, answer, kind, words):
    remote.answers.append(answer)
    assert words in str(failure(remote, kind))
    assert len(remote.requests) == 1


def test_no_message_shows_the_key(remote):
    remote.answers += [(401, {}, '{"error": {"message": "wrong key sk-secret"}}')]
    remote.answers += [(400, {}, '{"error": {"message": "key sk-secret can\'t do that"}}')]
    wrong = failure(remote, PermanentError, key="sk-secret")
    assert "sk-secret" not in str(wrong)
    assert "(401)" in str(wrong)
    refused = str(failure(remote, PermanentError, key="sk-secret"))
    assert refused.endswith("(400): key *** can't do that")
    remote.answers += [['data: {"error": "sk-secret is spent"}', ""]]
    remote.answers += [['data: {"choices": "sk-secret"}', ""]]
    spent = str(failure(remote, TransientError, key="sk-secret"))
    assert spent == "the upstream gave up: *** is spent"
    assert "sk-secret" not in str(failure(remote, PermanentError, key="sk-secret"))
    assert "sk-secret" not in repr(Upstream("http://a/v1", key="sk-secret"))


@pytest.mark.parametrize(
    "lines",
    [
        [*CUT, 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}', ""],
        [
            ": a comment",
            "event: chunk",
            *CUT,
            'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}',
        ],
    ],
)
def test_a_stream_with_a_reason_to_end_needs_no_more(remote, lines):
    remote.answers.append([*lines, ""])
    reply = chatted(remote)
    assert (reply.text, reply.finish_reason, reply.usage) == ("on", "length", None)


def test_too_few_vectors_are_an_error(remote):
    body = '{"data": [{"index": 0, "embedding": [1.0]}]}'
    remote.answers.append((200, {"Content-Type": "application/json"}, body))
    with pytest.raises(PermanentError, match="1 vectors for 2 texts"):
        with_upstream(remote, lambda server: server.embeddings(call_for(), ["a", "b"]))
