"""The detector over HTTP, scored in this process: what is answered to whom, and what is kept and repeated of a text."""

import base64
import hashlib
import json
import re
import time
from datetime import UTC, datetime, timedelta

import jsonschema
import pytest

from docs.examples.check_report import check
from scanner.service.reading import FILE_ENDS
from scanner.service.signing import issue_token, revoke_token
from schemas.service import MEANINGS, DetectorResult
from tests.support.detecting import ask, configured, detecting, request
from tests.support.pdf import needs_files, pdf_of

pytestmark = pytest.mark.seconds

TOKEN = re.compile(r"WORD\w*")


@pytest.fixture(scope="module")
def config(tmp_path_factory, registry):
    budget = "[budget]\nnear_duplicates = 3\ntexts = 200\n"
    proxy = '[proxy]\naddresses = ["127.0.0.1"]\ncaller = "X-Forwarded-For"\nexpert = "X-Expert"\n'
    more = "spans = { windows = true, segments = true }\n"
    top = 'provider = "Acme"\nmost_bytes = 20000\nnames = "experts"\nbatch = 4\n'
    return configured(tmp_path_factory.mktemp("detector"), registry, more=more, detector=top + budget + proxy)


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def server(config, told):
    with detecting(config, told=told) as server:
        yield server


def test_a_text_is_found_or_not_found_and_numbers_are_null(server, marked, plain):
    for text, result in ((marked(1, 200, 1), "found"), (plain(200, 2), "not found"), ("Text to inspect", "too short")):
        answer = ask(server, text, Content_Type="application/json")
        assert (answer["status"], answer["result"], answer["is_watermarked"]) == (200, result, result == "found")
        assert [answer[name] for name in ("score", "p_value", "num_scored_tokens", "p_class", "parts", "user")] == [
            None
        ] * 6
        assert answer["meaning"] == MEANINGS[DetectorResult(result)]
        assert (answer["technique"] is not None) == (result == "found")


def test_a_report_is_about_the_bytes_that_were_received(server, marked):
    text = "\u00e9 line\r\n" + marked(2, 200, 3)
    status, _, body = request(server, "POST", "/detect", json.dumps({"text": text}))  # escaped as \u00e9
    _, _, signpost = request(server, "GET", "/.well-known/ai-provenance")
    report = json.dumps(json.loads(body)["report"]).encode()
    assert status == 200
    assert check(report, text.encode(), signpost)["result"] == "found"
    with pytest.raises(ValueError, match="another text"):
        check(report, text.replace("\r\n", "\n").encode(), signpost)
    assert "score" not in json.loads(report)["statement"]


def test_variants_beyond_the_budget_wait_and_the_text_stays_answerable(server, marked):
    text = marked(4, 200, 10)
    for place in range(3):
        assert ask(server, text + f" {place}", X_Forwarded_For=f"10.0.0.{place}")["status"] == 200
    status, headers, body = request(
        server, "POST", "/detect", json.dumps({"text": text + " 3"}), X_Forwarded_For="10.0.0.9"
    )
    assert status == 429
    assert int(headers["retry-after"]) > 23 * 3600
    assert "marked text" in json.loads(body)["detail"]
    assert ask(server, text + " 0")["status"] == 200


def test_marked_text_within_fresh_text_is_known_by_its_part(server, marked, plain):
    """22 of 30 edits of a marked text were answered, each within 11 kB of other text."""
    piece, answers = marked(4, 210, 11), []
    for seed in range(6):
        words = piece.split(" ")
        words[10 + 25 * seed : 12 + 25 * seed] = plain(2, 300 + seed).split()
        text = f"{plain(515, 400 + seed)} {' '.join(words)} {plain(1_105, 500 + seed)}"
        assert 10_000 < len(text) < 20_000
        answers.append(ask(server, text, X_Forwarded_For=f"10.0.1.{seed}").get("result", "refused"))
    assert answers == ["found"] * 3 + ["refused"] * 3
    assert ask(server, plain(515, 400), X_Forwarded_For="10.0.1.9")["result"] == "not found", "the rest is not marked"


def test_a_batch_is_charged_text_by_text(server, marked, plain):
    text = marked(4, 200, 20)
    texts = [text, plain(150, 21), "short"]
    status, _, body = request(server, "POST", "/detect/batch", json.dumps({"texts": texts}))
    assert status == 200
    assert [one["result"] for one in json.loads(body)["answers"]] == ["found", "not found", "too short"]
    variants = [text + f" {place}" for place in range(4)]
    answers = json.loads(request(server, "POST", "/detect/batch", json.dumps({"texts": variants}))[2])["answers"]
    assert [one.get("result", "refused") for one in answers] == ["found"] * 2 + ["refused"] * 2
    assert request(server, "POST", "/detect/batch", json.dumps({"texts": ["x"] * 5}))[0] == 413


def test_experts_learn_a_class_parts_and_names_and_each_name_is_logged(server, config, marked, plain, registry):
    text = plain(60, 30) + " " + marked(3, 200, 4) + " " + plain(60, 31)
    token, record = issue_token(config.parent / "detector", "Ms Roth", datetime.now(UTC) + timedelta(days=1))
    answer = ask(server, text, Authorization=f"Bearer {token}")
    assert answer["result"] == "found"
    assert answer["p_class"] >= 1
    assert all(0 <= part["begin"] < part["end"] <= len(text) for part in answer["parts"])
    assert ask(server, text, X_Expert="Mr Lee")["p_class"] == answer["p_class"]
    assert ask(server, text)["p_class"] is None
    stored = "".join(path.read_text() for path in (config.parent / "detector").glob("*.json"))
    assert token not in stored
    revoke_token(config.parent / "detector", record.token_id)
    for wrong in (token, "nobody's", ""):
        assert ask(server, text, Authorization=f"Bearer {wrong}")["status"] == 401
    ended, _ = issue_token(config.parent / "detector", "X", datetime.now(UTC) + timedelta(seconds=0.2))
    time.sleep(0.3)
    assert ask(server, text, Authorization=f"Bearer {ended}")["status"] == 401


def test_users_are_named_for_experts_alone_and_logged(server, config, registry, words):
    from tests.support.two_keys import marked_text, message_of

    text = marked_text(registry, words)(message_of(registry, "green", "alice"), 200, 7)
    assert ask(server, text)["user"] is None
    assert ask(server, text, X_Expert="Mr Lee")["user"] == "alice"
    lines = [
        json.loads(line)
        for path in (config.parent / "detector/log").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert [line for line in lines if line.get("named_to") == "Mr Lee"]
    assert {name for line in lines for name in line} == {"time", "digest", "caller", "result", "techniques", "named_to"}
    assert "alice" not in json.dumps(lines)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/detect", "{", 422),
        ("/detect", '{"txt": "WORDone"}', 422),
        ("/detect", '{"text": 5}', 422),
        ("/detect", '{"text": "WORD", "more": ' + "[" * 10_000, 422),
        ("/detect", b'{"text": "WORD\xed\xa0\x80"}', 422),
        ("/detect", json.dumps({"text": "WORD" * 6000}), 413),
        ("/detect", "x" * 130_000, 413),
        ("/detect/batch", '{"texts": []}', 422),
        ("/detect/file", "WORD", 415),
        ("/nothing", "", 404),
    ],
)
def test_what_cannot_be_right_is_refused_without_repeating_it(server, path, body, status):
    got, headers, answer = request(server, "POST", path, body)
    assert got == status
    assert not TOKEN.search(answer.decode())
    assert headers["cache-control"] == "no-store"
    if status == 422:
        shape = {"/detect": '{"text": "…"}', "/detect/batch": '{"texts": ["…", "…"]}'}[path]
        assert json.loads(answer)["detail"].endswith(f"expected: {shape}.")


def test_files_are_read(server, marked):
    text = marked(5, 200, 9)
    page = f"<html><head><title>WORD</title></head><body><script>x</script><p>{text}</p></body></html>"
    for kind, raw in (("text/plain", text), ("text/markdown; charset=utf-8", text), ("text/html", page)):
        status, _, body = request(server, "POST", "/detect/file", raw, Content_Type=kind)
        assert (status, json.loads(body)["result"]) == (200, "found")
        assert (json.loads(body)["text"] or text).strip() == text.strip()
    assert request(server, "POST", "/detect/file", b"\xff\xfe", Content_Type="text/plain")[0] == 422


PAGE = '<p>{own}</p><p style="display:none">{hidden}</p><iframe srcdoc="seen"></iframe>'


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("text/html", lambda own, hidden: PAGE.format(own=own, hidden=hidden).encode()),
        pytest.param("application/pdf", lambda own, hidden: pdf_of([own, f") Tj 3 Tr ({hidden}"]), marks=needs_files),
    ],
    ids=["hidden element", "invisible ink"],
)
def test_report_names_no_file(server, marked, plain, kind, raw):
    """A person's file with marked text that nobody sees got a signed `found` with the file's digest."""
    file = raw(plain(20, 1), marked(5, 200, 12))
    status, _, body = request(server, "POST", "/detect/file", file, Content_Type=kind)
    answer = json.loads(body)
    assert (status, answer["result"]) == (200, "found")
    assert hashlib.sha256(file).hexdigest() not in body.decode()
    _, _, signpost = request(server, "GET", "/.well-known/ai-provenance")
    report = json.dumps(answer["report"]).encode()
    assert check(report, answer["text"].encode(), signpost)
    with pytest.raises(ValueError, match="another text"):
        check(report, file, signpost)
    sent, form_kind = form(file=("a" + FILE_ENDS[kind][0], file))
    page = request(server, "POST", "/", sent, Content_Type=form_kind)[2].decode()
    assert answer["text"][-30:] in page
    assert hashlib.sha256(file).hexdigest() not in page


def test_half_of_a_surrogate_pair_costs_no_other_text_its_answer(server, marked):
    """One such text in a batch had all of them refused as no JSON; a scan scores it with U+FFFD."""
    text = marked(3, 200, 13)
    sent = f'{{"texts": ["{text}", "{text} \\ud83d", "short"]}}'
    status, _, body = request(server, "POST", "/detect/batch", sent)
    assert status == 200
    found = json.loads(body)["answers"]
    assert [one["result"] for one in found] == ["found", "found", "too short"]
    _, _, signpost = request(server, "GET", "/.well-known/ai-provenance")
    assert check(json.dumps(found[1]["report"]).encode(), f"{text} \ufffd".encode(), signpost)


def form(**fields: bytes | tuple[str, bytes]) -> tuple[bytes, str]:
    parts = b""
    for name, value in fields.items():
        file = f'; filename="{value[0]}"' if isinstance(value, tuple) else ""
        raw = value[1] if isinstance(value, tuple) else value
        parts += f'--edge\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + raw + b"\r\n"
    return parts + b"--edge--\r\n", "multipart/form-data; boundary=edge"


def test_the_page_answers_in_words_with_a_report(server, marked):
    assert b"{" in request(server, "GET", "/style.css")[2]
    text = marked(6, 200, 11)
    for fields in ({"text": text.encode()}, {"text": b"", "file": ("post.md", text.encode())}):
        body, kind = form(**fields)
        status, _, page = request(server, "POST", "/", body, Content_Type=kind)
        assert status == 200
        assert MEANINGS[DetectorResult.FOUND].split(".")[0] in page.decode()
        assert text[:30] not in page.decode()
        report = re.search(r"base64,([\w+/=]+)", page.decode())[1]
        _, _, signpost = request(server, "GET", "/.well-known/ai-provenance")
        assert check(base64.b64decode(report), text.encode(), signpost)
        assert "at most 1 in 100,000,000 of such texts" in page.decode()
    for fields in ({"text": b" "}, {"file": ("x.exe", b"MZ")}):
        body, kind = form(**fields)
        status, _, page = request(server, "POST", "/", body, Content_Type=kind)
        assert (status in (415, 422), "No answer" in page.decode()) == (True, True)
    assert "their extension: .txt, .md, " in page.decode()


def test_openapi_describes_every_answer(server, plain):
    described = json.loads(request(server, "GET", "/openapi.json")[2])
    schemas = described["components"]["schemas"]
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(described)))
    assert named <= schemas.keys()
    answer = json.loads(request(server, "POST", "/detect", json.dumps({"text": plain(150, 40)}))[2])
    for model, value in (("DetectorAnswer", answer), ("DetectorRequest", {"text": "x"})):
        jsonschema.validate(value, {"$ref": f"#/components/schemas/{model}", "components": described["components"]})


def test_reports_and_signpost_name_the_address_where_none_is_configured(server, plain):
    """Reports of a detector on another port named port 8000."""
    report = ask(server, plain(150, 41))["report"]
    signpost = json.loads(request(server, "GET", "/.well-known/ai-provenance")[2])
    assert json.loads(report["statement"])["detector"] == f"http://127.0.0.1:{server.port}"
    assert signpost["issuer"]["installationUrl"] == f"http://127.0.0.1:{server.port}"
    assert signpost["detector"]["endpoint"] == f"http://127.0.0.1:{server.port}/detect"


def test_health_metrics_and_lines_have_no_word_of_a_text(server, told):
    ask(server, "WORDalpha " * 100)
    assert request(server, "GET", "/health")[0] == request(server, "GET", "/ready")[0] == 200
    metrics = request(server, "GET", "/metrics")[2].decode()
    assert 'brickscan_detector_answers_total{caller="anybody",result="found"}' in metrics
    assert not TOKEN.search(metrics + "\n".join(told))


def test_a_fault_is_told_by_its_kind_alone(server, told, monkeypatch):
    def fails(*_, **__):
        raise ValueError("WORDomega")

    monkeypatch.setattr(server.answers.budget, "has_left", fails)
    answer = ask(server, "WORDbeta")
    assert answer == {"detail": "This went wrong.", "status": 500}
    assert told[-1] == "event=fault path=/detect kind=ValueError"


@pytest.mark.parametrize("more", ["", "filter = {}\n"])
def test_the_signpost_says_whether_ngrams_are_left_out_not_what_is_configured(tmp_path, registry, more):
    """`filter = true` beside a scan without a filter was told as if n-grams were left out."""
    config = configured(tmp_path, registry, more=more, detector="filter = true\n")
    scan = tmp_path / "scan.toml"
    scan.write_text(scan.read_text().replace('["in"]', '["in/{date}"]'))
    with detecting(config) as server:
        signpost = json.loads(request(server, "GET", "/.well-known/ai-provenance")[2])
    assert signpost["detector"]["filter"] == bool(more)
