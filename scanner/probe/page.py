"""Write the result of a probe: JSON for programs, a page for people, and a signature.

The page needs no script and no network. Texts, names of classes and errors come from a server. They are escaped, and
invisible characters are shown as escapes. The page holds no secret: hypotheses are described in words, and keys by
their ids.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import jinja2

from scanner.errors import Refused
from scanner.evidence.posted_text import shown_characters
from scanner.printable import one_in, printable, safe
from scanner.probe.analysis import ProbeResult
from scanner.probe.judgement import Share
from scanner.service.signing import Signer, new_signing_key, signing_keys
from scanner.storage.locations import write_whole
from schemas.service import PageStatement

LONGEST_SAMPLE = 2_000
"""Most characters of a text on a page."""

LONGEST_NAME = 80
"""Most characters of a class's name, or of an error, on a page."""


def write_page(result: ProbeResult, out: Path, *, texts: bool = False, signing: Path | None = None) -> list[Path]:
    """Write probe.json, probe.html and their signature into a folder. Return the files.

    Args:
        result: of the analysis.
        out: the folder, which is made if it is missing. Files with the same names are replaced.
        texts: whether the page shows one text of each class. The JSON never does.
        signing: folder of the signing keys, as for `brickscan serve`. If no key there signs, one is made. None:
            unsigned.

    Raises:
        Refused: the files cannot be written, or the clock was set back after the signing key was made.
        SecretError: the signing key cannot be read.
    """
    plain = json.dumps(result.to_json(), indent=1, ensure_ascii=False).encode() + b"\n"
    html = page_of(result, texts=texts).encode()
    files = {"probe.json": plain, "probe.html": html}
    if signing is not None:
        if all(key.signs_until is not None for key in signing_keys(signing)):
            new_signing_key(signing)
        report = Signer(signing).sign(functools.partial(_statement, plain, html, result.version))
        keys = [key.model_dump(mode="json") for key in signing_keys(signing)]
        files["probe.report.json"] = report.model_dump_json(indent=1).encode() + b"\n"
        files["probe.keys.json"] = json.dumps({"signingKeys": keys}, indent=1).encode() + b"\n"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(out / name, _writer(content))
    except OSError as error:
        raise Refused(f"{out}: the page cannot be written there ({error.strerror}); name another folder") from None
    return [out / name for name in files]


def page_of(result: ProbeResult, *, texts: bool = False) -> str:
    """Render the page for people as HTML. texts: as for `write_page`."""
    samples = [
        (printable(name, LONGEST_NAME), "".join(shown_characters(text.strip()[:LONGEST_SAMPLE])))
        for name, text in result.samples
        if texts
    ]
    page = _templates().get_template("page.html.j2")
    return page.render(title="Probe of a server", result=result, samples=samples)


def in_short(result: ProbeResult) -> list[str]:
    """Return the findings as one sentence for each key."""
    sentences = []
    for key in result.keys:
        if key.named is None:
            but = f" But {safe('; '.join(key.differences))}." if key.differences else ""
            sentences.append(
                f"Key {key.key_id}: no mark is found, neither as the key says nor under any of {key.hypotheses - 1} "
                f"similar configurations.{but}"
            )
            continue
        untold = [printable(one.name, LONGEST_NAME) for one in key.classes if one.state == "cannot tell"]
        unmarked = [printable(one.name, LONGEST_NAME) for one in key.classes if one.state == "unmarked"]
        differs = f"and differs: {safe('; '.join(key.differences))}" if key.differences else "as the key says"
        left_out = f" These classes leave unmarked: {', '.join(unmarked)}." if unmarked else ""
        left_out += f" It cannot be told for these: {', '.join(untold)}." if untold else ""
        sentences.append(f"Key {key.key_id}: the server marks, {differs}.{left_out}")
    return sentences


def _statement(plain: bytes, html: bytes, version: str, signing_key: str) -> PageStatement:
    return PageStatement(
        signing_key=signing_key,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        text_sha256=hashlib.sha256(plain).hexdigest(),
        html_sha256=hashlib.sha256(html).hexdigest(),
        version=version,
    )


def _writer(content: bytes) -> Callable[[BinaryIO], object]:
    return lambda file: file.write(content)


def _share(share: Share | None) -> str:
    """Write a share and its limits in percent."""
    if share is None:
        return "not known"
    return f"{100 * share.value:.3g} % ({100 * share.low:.3g} to {100 * share.high:.3g})"


def _chance(log10_p: float) -> str:
    return "1" if log10_p > -1e-3 else one_in(log10_p)


def _name(text: str) -> str:
    return printable(text, LONGEST_NAME)


@functools.cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("scanner.probe", "."), jinja2.PackageLoader("scanner.evidence", ".")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"share": _share, "chance": _chance, "safe_line": safe, "name_of": _name, "in_short": in_short}
    templates.filters.update(filters)
    return templates
