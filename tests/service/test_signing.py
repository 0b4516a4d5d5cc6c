"""Signed reports, checked by the script of the docs and by openssl: forged, replayed and confused ones fail."""

import base64
import functools
import json
import shutil
import subprocess
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from docs.examples.check_report import check
from scanner.errors import Refused
from scanner.service.signing import Signer, new_signing_key, revoke_signing_key, signing_keys
from scanner.storage.toml import canonical
from schemas.service import DetectorResult, Statement

TEXT = "Grüße, a text\r\nwith lines".encode()


def statement(key_id: str, text: bytes = TEXT, **changed) -> Statement:
    import hashlib

    values = {
        "detector": "https://detector.example",
        "signing_key": key_id,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "text_sha256": hashlib.sha256(text).hexdigest(),
        "result": DetectorResult.NOT_FOUND,
        "techniques": ("a mark",),
        "technique": None,
        "commitments_head": None,
        "false_positive_rate": 1e-8,
        "audited": None,
        "version": "0",
    }
    return Statement(**values | changed)


@pytest.fixture
def state(tmp_path):
    new_signing_key(tmp_path / "detector")
    return tmp_path / "detector"


def signed(state, **changed) -> bytes:
    return Signer(state).sign(functools.partial(statement, **changed)).model_dump_json().encode()


def signpost(state) -> bytes:
    return json.dumps({"signingKeys": [key.model_dump(mode="json") for key in signing_keys(state)]}).encode()


def test_a_report_is_good_for_its_text_alone(state):
    report = signed(state)
    assert check(report, TEXT, signpost(state))["result"] == "not found"
    for other in (b"", TEXT + b" ", TEXT.replace(b"\r\n", b"\n"), TEXT.replace("ü".encode(), "u\u0308".encode())):
        with pytest.raises(ValueError, match="another text"):
            check(report, other, signpost(state))


def test_no_byte_of_a_report_can_be_changed(state):
    """Each byte of the statement and the signature, and each field: 700 forgeries."""
    report, post, tried = json.loads(signed(state)), signpost(state), 0
    for name in ("statement", "signature"):
        for place in range(len(report[name])):
            forged = report[name][:place] + ("A" if report[name][place] != "A" else "B") + report[name][place + 1 :]
            tried += 1
            with pytest.raises((ValueError, KeyError)):
                check(json.dumps(report | {name: forged}).encode(), TEXT, post)
    fields = json.loads(report["statement"])
    for name, value in {
        "result": "found",
        "technique": "x",
        "time": "2020-01-01T00:00:00+00:00",
        "version": "9",
    }.items():
        with pytest.raises(ValueError, match=r"signature|did not sign"):
            check(json.dumps(report | {"statement": canonical(fields | {name: value})}).encode(), TEXT, post)
    assert tried > 400


def test_other_kinds_of_reports_are_refused(state):
    """A downgrade: no signature, another type or version of statement, a field beside, an algorithm that is named."""
    report, post = json.loads(signed(state)), signpost(state)
    other = canonical(json.loads(report["statement"]) | {"type": "brickscan detector report 0"})
    for forged in (
        {"statement": report["statement"]},
        report | {"signature": ""},
        report | {"algorithm": "none"},
        report | {"statement": other},
        report | {"statement": canonical({"type": "brickscan detector report 1"})},
        [],
    ):
        with pytest.raises((ValueError, KeyError)):
            check(json.dumps(forged).encode(), TEXT, post)


def test_keys_are_not_confused(state, tmp_path):
    """Another key under this one's id, another algorithm's key, another detector's key, one that is not published."""
    new_signing_key(tmp_path / "other")
    post, theirs = json.loads(signpost(state)), json.loads(signpost(tmp_path / "other"))
    foreign = signed(tmp_path / "other")
    with pytest.raises(ValueError, match="none of the detector"):
        check(foreign, TEXT, json.dumps(post).encode())
    claimed = json.loads(foreign)
    claimed["statement"] = claimed["statement"].replace(
        theirs["signingKeys"][0]["key_id"], post["signingKeys"][0]["key_id"]
    )
    with pytest.raises(ValueError, match="signature"):
        check(json.dumps(claimed).encode(), TEXT, json.dumps(post).encode())
    mixed = post["signingKeys"][0] | {"public_key": theirs["signingKeys"][0]["public_key"]}
    with pytest.raises(ValueError, match="another key"):
        check(signed(state), TEXT, json.dumps({"signingKeys": [mixed]}).encode())
    ec = generate_private_key(SECP256R1())
    pem = ec.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    report = json.loads(signed(state))
    report["signature"] = base64.b64encode(ec.sign(report["statement"].encode(), ECDSA(SHA256()))).decode()
    with pytest.raises(ValueError, match="Ed25519"):
        check(
            json.dumps(report).encode(),
            TEXT,
            json.dumps({"signingKeys": [post["signingKeys"][0] | {"public_key": pem}]}).encode(),
        )


def test_reports_of_a_rotated_key_stay_good_and_those_of_a_revoked_one_do_not(state):
    signer = Signer(state)
    before = signer.sign(statement).model_dump_json().encode()
    first, second = signing_keys(state)[0], new_signing_key(state)
    after = signer.sign(statement).model_dump_json().encode()
    assert json.loads(json.loads(after)["statement"])["signing_key"] == second.key_id, "taken over without a restart"
    assert [path.name for path in state.glob("*.pem")] == [f"signing-{second.key_id}.pem"]
    assert check(before, TEXT, signpost(state))
    assert check(after, TEXT, signpost(state))
    revoke_signing_key(state, first.key_id)
    with pytest.raises(ValueError, match="revoked"):
        check(before, TEXT, signpost(state))
    assert check(after, TEXT, signpost(state))
    revoke_signing_key(state, second.key_id)
    with pytest.raises(Refused, match="serve key new"):
        signer.sign(statement)
    assert not list(state.glob("*.pem"))


def test_a_report_of_a_time_at_which_its_key_did_not_sign_is_refused(state):
    late = signed(state, time="2990-01-01T00:00:00+00:00")
    assert check(late, TEXT, signpost(state)), "nothing but a later rotation ends a key"
    new_signing_key(state)
    later = json.loads(signpost(state))
    later["signingKeys"][-1]["signs_from"] = "2980-01-01T00:00:00+00:00"
    for report, published in ((late, signpost(state)), (signed(state), json.dumps(later))):
        with pytest.raises(ValueError, match="did not sign"):
            check(report, TEXT, published)


def test_openssl_checks_the_same(state, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    report = json.loads(signed(state))
    (tmp_path / "key.pem").write_text(signing_keys(state)[0].public_key)
    (tmp_path / "signature").write_bytes(base64.b64decode(report["signature"]))
    for text, code in ((report["statement"], 0), (report["statement"] + " ", 1)):
        (tmp_path / "statement").write_text(text)
        command = [
            "pkeyutl",
            "-verify",
            "-pubin",
            "-inkey",
            "key.pem",
            "-rawin",
            "-in",
            "statement",
            "-sigfile",
            "signature",
        ]
        assert subprocess.run(["openssl", *command], cwd=tmp_path, capture_output=True, check=False).returncode == code


def test_a_list_of_keys_with_another_key_under_an_id_is_refused(state, tmp_path):
    """It was published, and reports that were good went for forged."""
    new_signing_key(tmp_path / "other")
    listed = json.loads((state / "signing.json").read_text())
    for public in (signing_keys(tmp_path / "other")[0].public_key, "no key"):
        changed = {"keys": [listed["keys"][0] | {"public_key": public}]}
        (state / "signing.json").write_text(json.dumps(changed))
        for refused in (lambda: signing_keys(state), lambda: signed(state), lambda: new_signing_key(state)):
            with pytest.raises(Refused, match="is not a list of signing keys"):
                refused()


def test_a_list_of_keys_that_is_gone_is_no_new_beginning(state):
    """A new key was made, and reports of those before were nobody's."""
    kept = (state / "signing.json").read_text()
    (state / "signing.json").unlink()
    for refused in (lambda: signing_keys(state), lambda: new_signing_key(state)):
        with pytest.raises(Refused, match="is missing, but its private keys exist; restore it"):
            refused()
    (state / "signing.json").write_text(kept)
    assert signed(state)


def test_private_keys_are_private(state):
    for path in [*state.glob("*.pem")]:
        assert path.stat().st_mode & 0o077 == 0
