"""A probe asks a server of ours that answers well, badly, late, without end or not at all."""

import contextlib
import gzip
import html
import json
import os
import shutil
import socket
import ssl
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from scanner.errors import Refused, ScanFailed, SecretError
from scanner.probe import asking
from scanner.probe.asking import FAILURES_IN_A_ROW, Asked, Tokens, ask, most_cost, read_token
from scanner.probe.classes import CLASSES, requests_of
from scanner.probe.config import ProbeConfig
from scanner.probe.kept import ANSWERS, KeptAnswers
from tests.probe.server import ModelServer, Written, breaks_off, drips, echo, endless, no_http, sends, serving, status

TOKEN = "sk-a-token-of-the/tests-0123456789&<x>"


def made(at: ModelServer, classes: tuple[str, ...] = ("temperature-1",), answers: int = 3, **others) -> ProbeConfig:
    """A probe of some classes only."""
    off = [{"name": one.name, "answers": 0} for one in CLASSES if one.name not in classes]
    fields = {"url": at.url, "model": "m", "requests_a_minute": 1e6} | others.pop("server", {})
    return ProbeConfig.model_validate(
        {"version": 2, "answers": answers, "server": fields, "classes": tuple(off), **others}
    )


def run(config: ProbeConfig, folder: Path) -> tuple[Asked, list[dict]]:
    requests = requests_of(config)
    with KeptAnswers(folder / "asking.jsonl") as kept:
        asked = ask(config, requests, Tokens(config, folder), kept, lambda *_: None, first_pause_s=0.01)
        table = kept.table(requests)
    assert table.schema == ANSWERS
    return asked, table.to_pylist()


def test_every_class_is_asked_and_answered(tmp_path):
    def write(body, number):
        reasoning = "first I think" if "train" in str(body) or "bill" in str(body) else None
        return [one._replace(ids=[1, 2, 3], reasoning=reasoning) for one in echo(body, number)]

    with serving(write) as server:
        config = ProbeConfig.model_validate(
            {
                "version": 2,
                "answers": 2,
                "server": {"url": server.url, "model": "m", "token_ids": True, "requests_a_minute": 1e6},
            }
        )
        asked, rows = run(config, tmp_path)
    requests = requests_of(config)
    assert asked.sent == len(requests) == len(server.asked)
    assert len(rows) == sum(request.texts for request in requests)
    assert [row for row in rows if row["error"] or row["note"]] == []
    by_class = {row["class"]: row for row in rows}
    assert by_class["temperature-1"]["ids"] == [1, 2, 3]
    assert by_class["streaming"]["text"].startswith("0: ")
    assert by_class["reasoning"]["text"] == "first I think"
    assert by_class["reasoning-answer"]["text"].startswith("0: ")
    assert json.loads(by_class["tools"]["text"])["body"].startswith("0: ")
    assert sum(row["class"] == "several-answers" for row in rows) == 3
    assert len({row["request"] for row in rows}) == len(rows)


def test_completions_streams_and_prompts(tmp_path):
    with serving() as server:
        _, rows = run(made(server, ("streaming", "several-answers"), server={"api": "completions"}), tmp_path)
    assert {one.path for one in server.asked} == {"/v1/completions"}
    assert all(row["text"] == f"{row['text'][0]}: {row['prompt']}" for row in rows)


def test_a_probe_goes_on_where_it_stopped(tmp_path):
    """Nothing is asked twice, but what was asked otherwise, and a line that a kill cut off."""
    with serving() as server:
        config = made(server, answers=5)
        run(config, tmp_path)
        path = tmp_path / "asking.jsonl"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:3]) + lines[3][:40])
        asked, rows = run(config, tmp_path)
        assert (asked.sent, len(server.asked), len(rows)) == (2, 7, 5)
        assert len(path.read_bytes().splitlines()) == 5
        asked, rows = run(config, tmp_path)
        assert (asked.sent, len(server.asked), len(rows)) == (0, 7, 5)
        asked, _ = run(made(server, answers=5, server={"most_tokens": 7}), tmp_path)
        assert asked.sent == 5


def test_a_file_that_is_none_is_refused_and_left(tmp_path):
    path = tmp_path / "asking.jsonl"
    path.write_text('{"request_id": 1}\n')
    with pytest.raises(Refused, match="line 1 is not a recorded answer"):
        KeptAnswers(path)
    assert path.read_text() == '{"request_id": 1}\n'


def test_a_folder_that_is_deleted_meanwhile(tmp_path):
    with serving() as server:
        config = made(server, answers=1)
        requests = requests_of(config)
        with KeptAnswers(tmp_path / "probe" / "asking.jsonl") as kept:
            ask(config, requests, Tokens(config, tmp_path), kept, lambda *_: None)
            shutil.rmtree(tmp_path / "probe")
            assert len(kept.table(requests)) == 1
            kept.discard()


def test_a_place_where_nothing_can_be_kept_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be written"):
        KeptAnswers(tmp_path / "file" / "asking.jsonl")
    os.mkfifo(tmp_path / "asking.jsonl")
    with pytest.raises(Refused, match=r"not a regular file|cannot be written"):
        KeptAnswers(tmp_path / "asking.jsonl")


def test_two_probes_do_not_ask_into_one_folder(tmp_path):
    with KeptAnswers(tmp_path / "asking.jsonl"), pytest.raises(Refused, match="another probe"):
        KeptAnswers(tmp_path / "asking.jsonl")


def test_429_and_500_in_turn_are_tried_again(tmp_path):
    troubles = [status(429, Retry_After="0"), status(500), status(429), None, status(503), no_http, breaks_off]
    with serving(troubles=troubles) as server:
        asked, rows = run(made(server, answers=3, server={"requests_at_once": 1}), tmp_path)
    assert [row["error"] for row in rows] == [None] * 3
    assert (asked.sent, len(server.asked)) == (3, 9)


def test_retry_after_is_waited_for_by_all(tmp_path):
    with serving(troubles=[status(429, Retry_After="1")]) as server:
        begun = time.monotonic()
        run(made(server, answers=2, server={"requests_at_once": 1}), tmp_path)
    assert [one.at - begun >= 1 for one in server.asked] == [False, True, True]


def test_the_rate_is_kept(tmp_path):
    with serving() as server:
        begun = time.monotonic()
        run(made(server, answers=6, server={"requests_a_minute": 1200}), tmp_path)
    # 5 pauses of 50 ms after the first request
    assert time.monotonic() - begun >= 0.25
    times = sorted(one.at for one in server.asked)
    assert times[-1] - times[0] >= 0.2


BAD = {
    "html": (sends(b"<!DOCTYPE html><h1>Sign in</h1>", "text/html"), "the server sent HTML instead of JSON"),
    "html with a status": (status(403, "<b>no</b>"), "HTTP 403: <b>no</b>"),
    "empty": (sends(b""), "the answer is empty"),
    "no text": (sends(b'{"choices": [{"message": {"content": ""}}]}'), "the answer is empty"),
    "null": (sends(b'{"choices": [{"message": {"content": null}}]}'), "the answer is empty"),
    "no choices": (sends(b'{"choices": []}'), "the server sent JSON without `choices`"),
    "a list": (sends(b"[1]"), "the server sent JSON that is not an object"),
    "choices of another kind": (sends(b'{"choices": [3]}'), "the answer is not a JSON object"),
    "an error with 200": (sends(b'{"error": {"message": "model overloaded"}}'), "the server says: model overloaded"),
    "deep": (sends(b'{"a":' * 3_000), "the server sent something else instead of JSON"),
    "a long number": (sends(b'{"a": ' + b"9" * 5000 + b"}"), "the server sent something else instead of JSON"),
    "endless": (endless, "the answer has more than 20,000 bytes and was cut off"),
    "late": (drips, "no complete answer arrived within 0.3 s"),
    "cut off": (breaks_off, "the connection closed before the answer was complete"),
    "no HTTP": (no_http, "the answer is not HTTP"),
    "a redirect": (status(307, "elsewhere", Location="http://127.0.0.1:1/"), "HTTP 307: elsewhere"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_becomes_a_sentence(name, tmp_path):
    """It costs nothing but its own request."""
    trouble, told = BAD[name]
    limits = {"requests_at_once": 1, "attempts": 1, "most_answer_bytes": 20_000, "timeout_s": 0.3}
    with serving(troubles=[trouble]) as server:
        _, rows = run(made(server, answers=2, server=limits), tmp_path)
    assert rows[0]["error"].startswith(told)
    assert rows[0]["text"] is None
    assert rows[1]["error"] is None


def test_a_stream_that_breaks_off_is_no_answer(tmp_path):
    piece = b'data: {"choices": [{"index": 0, "delta": {"content": "half of an ans"}}]}\n\n'
    fault = b'data: {"error": {"message": "out of memory"}}\n\n'
    limits = {"requests_at_once": 1, "attempts": 1}
    with serving(
        troubles=[sends(piece), sends(piece + fault), sends(b'{"choices": [{"message": {"content": "whole"}}]}')]
    ) as server:
        _, rows = run(made(server, ("streaming",), server=limits), tmp_path)
    assert rows[0]["error"].startswith("the stream was cut off after")
    assert rows[1]["error"] == "the stream ended with an error: out of memory"
    assert rows[2]["text"] == "whole"


def test_pieces_of_the_wrong_kind_are_left_out(tmp_path):
    """Fields of a stream that grow, given as something that cannot; lists in lists; a mark of UTF-8 before JSON."""

    def stream(*choices):
        return sends(b"".join(b'data: {"choices": [%s]}\n\n' % one.encode() for one in choices) + b"data: [DONE]\n\n")

    troubles = [
        stream('{"index": 0, "token_ids": 5, "text": 7}', '{"index": 0, "token_ids": [1], "text": "a"}'),
        stream('{"index": 0, "message": "x"}', '{"index": 0, "delta": {"content": "b"}}'),
        sends(b'{"choices": [{"message": {"content": ' + b'[{"text": ' * 400 + b'"c"' + b"}]" * 400 + b"}}]}"),
        sends(b'\xef\xbb\xbf{"choices": [{"message": {"content": "d"}}]}'),
        sends(gzip.compress(b'{"choices": [{"message": {"content": "e"}}]}')),
    ]
    with serving(troubles=troubles) as server:
        _, rows = run(made(server, ("streaming",), answers=5, server={"requests_at_once": 1}), tmp_path)
    assert [row["text"] for row in rows] == ["a", "b", None, "d", None]
    assert rows[0]["ids"] == [1]
    assert rows[2]["error"] == "the answer is empty"


def test_a_server_that_asks_for_no_pause_gets_one(tmp_path):
    with serving(troubles=[status(429, Retry_After="0")] * 3) as server:
        run(made(server, answers=1), tmp_path)
    first, second, third, fourth = (one.at for one in server.asked)
    assert third - second > 0.015
    assert fourth - third > 0.03
    assert second > first


@pytest.mark.parametrize(
    "change", [{"cost": "5"}, {"cost": float("nan")}, {"reply": 5}, {"reply": {"answers": [{"text": 5}]}}]
)
def test_kept_answers_that_were_edited_are_refused(change, tmp_path):
    with serving() as server:
        run(made(server, answers=1), tmp_path)
    file = tmp_path / "asking.jsonl"
    file.write_text(json.dumps(json.loads(file.read_text()) | change) + "\n")
    with pytest.raises(Refused, match="line 1 is not a recorded answer"):
        KeptAnswers(file)


def test_too_few_answers_of_one_request(tmp_path):
    with serving(lambda *_: [Written("one of three")]) as server:
        _, rows = run(made(server, ("several-answers",), answers=3), tmp_path)
    assert [row["error"] for row in rows] == [None, *["the server returned 1 of 3 answers"] * 2]


def test_another_model_and_half_characters_are_told(tmp_path):
    half = b'{"model": "m", "choices": [{"message": {"content": "half \\ud83d of one"}}]}'
    with serving(model="m-2024", troubles=[None, sends(half)]) as server:
        _, rows = run(made(server, answers=2, server={"requests_at_once": 1}), tmp_path)
    assert rows[0]["note"] == "answered by model 'm-2024', but 'm' was requested"
    assert (rows[1]["text"], rows[1]["note"]) == ("half \ufffd of one", "incomplete characters in it were replaced")


def test_ids_that_can_be_none_are_left_out(tmp_path):
    for ids in ([-1], ["a"], [2**32], [], [True]):
        with serving(lambda *_, ids=ids: [Written("text", ids)]) as server:
            _, rows = run(made(server, answers=1, server={"token_ids": True}), tmp_path / str(ids))
        assert (rows[0]["text"], rows[0]["ids"]) == ("text", None)


def test_a_huge_answer_is_kept_as_far_as_it_is_tested(tmp_path):
    """Hundreds of whole ones would fill the memory."""
    with serving(lambda *_: [Written("a" * 300_000, [7] * 70_000)]) as server:
        _, rows = run(made(server, answers=1, server={"token_ids": True}), tmp_path)
    assert (len(rows[0]["text"]), len(rows[0]["ids"])) == (262_144, 65_536)
    assert rows[0]["note"] == "only its first 262,144 characters were kept"


def test_a_server_that_is_not_there_ends_the_probe(tmp_path):
    """What failed is asked again by the next run."""
    with serving() as server:
        config = made(server, answers=30, server={"attempts": 1})
    with pytest.raises(
        ScanFailed, match=f"{FAILURES_IN_A_ROW} requests in a row got no answer, the last one because: no connection"
    ):
        run(config, tmp_path)
    with serving() as other:
        again = made(other, answers=30)
        assert run(again, tmp_path)[0].sent == 30


def test_a_certificate_that_nobody_vouches_for_is_a_sentence(tmp_path):
    """As a site's own server has one. Nothing is sent to it, and the probe goes on."""
    with serving() as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(tmp_path / "own.pem"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
        config = made(server, answers=1, server={"url": server.url.replace("http", "https"), "attempts": 1})
        _, rows = run(config, tmp_path)
    assert rows[0]["error"] == "the server's certificate is not trusted (self-signed certificate)"
    assert server.asked == []


def certificate(path: Path) -> Path:
    """A certificate that signs itself, with its key."""
    key, name = Ed25519PrivateKey.generate(), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    signed = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1)).sign(key, None)
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(plain + signed.public_bytes(Encoding.PEM))
    return path


def test_no_request_is_sent_that_could_cost_too_much(tmp_path):
    price = {"a_million_in": 0.0, "a_million_out": 1e6, "most": 250.0}  # one for a token
    with serving(lambda *_: [Written("one two three")]) as server:
        config = made(server, answers=100, server={"most_tokens": 100, "requests_at_once": 4}, price=price)
        assert most_cost(requests_of(config), config.price) == pytest.approx(100 * 100)
        asked, rows = run(config, tmp_path)
        # each answer has three tokens, but could have 100: the last is sent while 150 or less are spent
        assert (asked.cost, asked.sent, asked.not_sent) == (153, 51, 49)
        assert len(rows) == 51
        assert run(config, tmp_path)[0].sent == 0


def test_a_timeout_counts_at_its_most(tmp_path):
    price = {"a_million_in": 0.0, "a_million_out": 1e6, "most": 250.0}
    with serving(always=drips) as server:
        limits = {"most_tokens": 100, "requests_at_once": 1, "timeout_s": 0.1, "attempts": 5}
        asked, rows = run(made(server, answers=1, server=limits, price=price), tmp_path)
    assert len(server.asked) == 2
    assert asked.cost == 200
    assert rows[0]["error"] == "no complete answer arrived within 0.1 s"


def test_an_interrupt_keeps_what_came_and_ends_at_once(tmp_path):
    def watch(done, *_):
        if done == 2:
            raise KeyboardInterrupt

    with serving(troubles=[None, None], always=drips) as server:
        config = made(server, answers=6, server={"requests_at_once": 2, "timeout_s": 60})
        begun = time.monotonic()
        with KeptAnswers(tmp_path / "asking.jsonl") as kept, pytest.raises(KeyboardInterrupt):
            ask(config, requests_of(config), Tokens(config, tmp_path), kept, watch)
    assert time.monotonic() - begun < 10
    assert len((tmp_path / "asking.jsonl").read_bytes().splitlines()) == 2


def test_what_an_interrupt_breaks_off_counts_as_paid(tmp_path, monkeypatch):
    """The server may charge for it. Else each interrupt would let a probe spend more than `most`."""

    def watch(*_):
        if len(server.asked) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(asking, "_SIGN_SECONDS", 0.1)
    price = {"a_million_in": 0.0, "a_million_out": 1e6, "most": 250.0}
    with serving(always=drips) as server:
        limits = {"most_tokens": 100, "requests_at_once": 2, "timeout_s": 60}
        config = made(server, answers=9, server=limits, price=price)
        for _ in range(3):
            server.asked.clear()
            with KeptAnswers(tmp_path / "asking.jsonl") as kept, contextlib.suppress(KeyboardInterrupt):
                asked = ask(config, requests_of(config), Tokens(config, tmp_path), kept, watch)
            assert kept.cost == 200
    assert (asked.sent, asked.not_sent, asked.cost) == (0, 9, 200)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_interrupt_does_not_wait_for_a_connection(scheme, tmp_path, monkeypatch):
    """Of a server that accepts none, or that accepts and says nothing where TLS should begin."""
    monkeypatch.setattr(asking, "_SIGN_SECONDS", 0.1)
    with socket.socket() as listening, contextlib.ExitStack() as others:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0 if scheme == "http" else 9)
        for _ in range(4 if scheme == "http" else 0):  # fill its queue
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(listening.getsockname())
        with serving() as server:
            url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
            config = made(server, answers=4, server={"timeout_s": 30, "url": url})
        requests, began = requests_of(config), time.monotonic()

        def watch(*_):
            if time.monotonic() - began > 0.3:
                raise KeyboardInterrupt

        with KeptAnswers(tmp_path / "asking.jsonl") as kept, pytest.raises(KeyboardInterrupt):
            ask(config, requests, Tokens(config, tmp_path), kept, watch)
    assert time.monotonic() - began < 15


def test_the_token_is_sent_and_kept_nowhere(tmp_path, monkeypatch):
    """Not where the server repeats it in a text, an error, a stream, in pieces or as JSON escapes."""
    monkeypatch.setenv("PROBE_TOKEN", TOKEN)
    escaped = "".join(f"\\u{ord(character):04x}" for character in TOKEN)
    stream = [
        {"choices": [{"index": 0, "delta": {"content": part}, "finish_reason": "stop"}]}
        for part in (TOKEN[:9], TOKEN[9:])
    ]
    troubles = [
        status(401, f"Incorrect API key: {TOKEN}"),
        sends(f'{{"error": {{"message": "bad key {escaped}"}}}}'.encode()),
        sends(f"<html>{TOKEN}</html>".encode()),
        sends(f'{{"model": "{escaped}", "choices": [{{"message": {{"content": "your key is {escaped}"}}}}]}}'.encode()),
        sends("".join(f"data: {json.dumps(one)}\n\n" for one in stream).encode()),
        sends(f'{{"error": {{"message": "{TOKEN}"}}}}'.encode("utf-16-le")),
        sends(f"<html>{html.escape(TOKEN)} {quote(TOKEN)}</html>".encode()),
    ]
    with serving(troubles=troubles) as server:
        config = made(server, ("streaming",), answers=7, server={"token": "env:PROBE_TOKEN", "requests_at_once": 1})
        _, rows = run(config, tmp_path)
    assert {one.authorization for one in server.asked} == {f"Bearer {TOKEN}"}
    assert rows[0]["error"] == "HTTP 401: Incorrect API key: [token]"
    assert rows[3]["text"] == "your key is [token]"
    assert rows[4]["text"] == "[token]"
    assert rows[5]["error"] == "the server sent something else instead of JSON: [bytes that are not UTF-8]"
    assert rows[6]["error"] == "the server sent HTML instead of JSON: [a text that repeats the token]"
    everything = (tmp_path / "asking.jsonl").read_text() + str(rows) + repr(Tokens(config, tmp_path)) + repr(config)
    assert TOKEN not in everything
    assert TOKEN[:20] not in everything


ESCAPED = {
    "URL": quote(TOKEN),
    "URL in small letters": quote(TOKEN, safe="").replace("%2F", "%2f"),
    "HTML by numbers": "".join(f"&#{ord(character)};" for character in TOKEN),
    "HTML by hexadecimal numbers": html.escape(TOKEN).replace("-", "&#x02D;"),
    "JSON of other programs": TOKEN.replace("/", "\\/").replace("<", "\\u003C"),
    "JSON in JSON": json.dumps(json.dumps({"key": TOKEN.replace("-", "\\")})),
}


@pytest.mark.parametrize("name", ESCAPED)
def test_a_token_is_hidden_however_it_is_escaped(name, tmp_path, monkeypatch):
    """In an error, in a text with the ids that spell it, and in a model's name."""
    monkeypatch.setenv("PROBE_TOKEN", TOKEN.replace("-", "\\") if name == "JSON in JSON" else TOKEN)
    answer = {"model": ESCAPED[name], "choices": [{"message": {"content": ESCAPED[name]}, "token_ids": [1, 2]}]}
    troubles = [sends(f"<html>{ESCAPED[name]}</html>".encode()), sends(json.dumps(answer).encode())]
    with serving(troubles=troubles) as server:
        limits = {"token": "env:PROBE_TOKEN", "requests_at_once": 1, "attempts": 1, "token_ids": True}
        _, rows = run(made(server, answers=2, server=limits), tmp_path)
    assert rows[0]["error"] == "the server sent HTML instead of JSON: [a text that repeats the token]"
    assert (rows[1]["text"], rows[1]["ids"]) == ("[token]", None)
    assert "[a text that repeats the token]" in rows[1]["note"]
    assert "456789" not in (tmp_path / "asking.jsonl").read_text()


def test_each_user_has_their_own_token(tmp_path, monkeypatch):
    monkeypatch.setenv("ALICE", "token-of-alice")
    users = ({"id": "alice", "token": "env:ALICE"}, {"id": "bob"})
    with serving() as server:
        _, rows = run(made(server, answers=2, server={"requests_at_once": 1}, users=users), tmp_path)
    assert [one.authorization for one in server.asked] == ["Bearer token-of-alice", None]
    assert [row["user_id"] for row in rows] == ["alice", "bob"]


def test_a_token_is_read_as_secrets_are(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    with pytest.raises(SecretError, match="chmod 600"):
        read_token("file:token", tmp_path)
    file.chmod(0o600)
    assert read_token("file:token", tmp_path) == TOKEN
    for wrong in ("", "  \n", f"{TOKEN}\r\nX-Other: 1", "sk-\u00e9"):
        monkeypatch.setenv("PROBE_TOKEN", wrong)
        with pytest.raises(SecretError) as refused:
            read_token("env:PROBE_TOKEN", tmp_path)
        assert TOKEN not in str(refused.value)
    monkeypatch.delenv("PROBE_TOKEN")
    with pytest.raises(SecretError, match="is empty or not set"):
        read_token("env:PROBE_TOKEN", tmp_path)
