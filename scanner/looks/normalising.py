"""Define the interface of normalised texts.

A normalised text is a second text, scored if it differs from the text as written.

A normal form depends only on the text and on no key, so p-values hold for it as for any text. It is a look of its own,
with a share of the rate (scanner.error_shares).
"""

import hashlib
import unicodedata
from collections.abc import Callable, Sequence
from importlib.resources import files

from scanner.errors import Refused
from scanner.looks.normal_form.normal_form import find_normal_forms
from scanner.text.utf8 import Utf8
from schemas.config import VariantsConfig

NORMAL_FORMS: tuple[Callable[[Sequence[str], Utf8], dict[int, str]], ...] = (find_normal_forms,)
"""The only normal form, on a line that can be deleted together with its folder.

Each text is then its own normal form.
"""


_DECIDE_NORMAL_FORM = ("looks/normal_form", "look_alikes.py", "printable.py")
"""Files and folders of the package that decide a text's normal form."""


def normal_form_sha256() -> str | None:
    """Return the SHA-256 of the definition of the normal form: code, tables and version of Unicode.

    None: there is none.

    Public records of keys contain it (SPEC_3 §2), so that it cannot be chosen afterwards.
    """
    if not NORMAL_FORMS:
        return None
    digest = hashlib.sha256(f"brickscan normal form\n{unicodedata.unidata_version}\n".encode())
    for place in map(files("scanner").joinpath, _DECIDE_NORMAL_FORM):
        inner = sorted(place.iterdir(), key=lambda file: file.name) if place.is_dir() else [place]
        for file in inner:
            if file.name.endswith(".py"):
                digest.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def check_variants(variants: VariantsConfig) -> None:
    """Raise Refused if normalised texts are to be scored, but there is no normal form."""
    if variants.normalised and not NORMAL_FORMS:
        raise Refused("variants.normalised: this installation has no normal form of texts; leave it out")


def normal_forms(texts: Sequence[str], utf8: Utf8) -> dict[int, str]:
    """Return the normal forms of texts that differ from them, by place.

    Args:
        texts: the texts.
        utf8: the same texts as bytes.
    """
    for find in NORMAL_FORMS:
        return find(texts, utf8)
    return {}


def normalise(text: str) -> str:
    """Return a text as it was before its mark was hidden, as far as the text shows this. It is mostly the same text."""
    return normalise_all([text])[0]


def normalise_all(texts: Sequence[str]) -> list[str]:
    """Normalise several texts, in a tenth of the time that they take one by one."""
    forms = normal_forms(texts, Utf8.of(texts))
    return [forms.get(place, text) for place, text in enumerate(texts)]


def scored_text(text: str, variant: str | None) -> str:
    """Return the text that was scored for a row of VERDICTS.

    Args:
        text: the text as written.
        variant: variant of the row.

    Raises:
        Refused: it was normalised, but there is no normal form.
    """
    if variant is None:
        return text
    if not NORMAL_FORMS:
        raise Refused(f"the {variant} text was scored, but this installation has no normal form of texts")
    return normalise(text)
