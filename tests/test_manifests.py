"""C2PA manifests in texts, put there by another implementation of the specification."""

import random
import re

import c2pa_text
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.detection.stored_texts import read_texts
from scanner.input.documents import decode_text, read_text
from scanner.printable import MOST_UNSEEN, without_manifests
from scanner.text import load_tokenizer, sha256_file
from tests.support.two_keys import TOKENIZER

TEXT = "Hello world, some text.\nA second line, with a\ufeff mark and a heart \u2764\ufe0f."
REFERENCES = (c2pa_text.encode_data_uri(bytes(range(256)) * 4), "https://example.com/manifests/abc.c2pa")
COMMENTS = (("#", ""), ("//", ""), ("/*", "*/"), ("<!--", "-->"), ("--", ""))


@given(st.text(), st.binary(max_size=300), st.integers(0, 50), st.integers(0, 40))
def test_a_wrapper_is_cut_wherever_it_stands_however_long(text, manifest, place, fill):
    wrapper = c2pa_text.encode_wrapper(manifest)
    size = len(wrapper.encode()) + 4 * fill
    filled = c2pa_text.encode_wrapper_padded(manifest, size + 6 if fill else size)
    for one in (wrapper, filled):
        before, behind = text[:place], text[place:]
        if re.match("[\ufe00-\ufe0f\U000e0100-\U000e01ef]", behind):
            continue  # a selector behind a wrapper fills it up
        assert without_manifests(before + one + behind) == without_manifests(text)


@given(st.text(alphabet="\ufeff\ufe00\ufe01\U000e0133\U000e0122\U000e0140ab", max_size=MOST_UNSEEN))
def test_what_is_no_wrapper_stays(text):
    assert without_manifests(text) is text


@pytest.mark.parametrize("cut", [1, 4, 100, 1495, 1499])
def test_damaged_wrapper(cut):
    """A wrapper that was damaged on purpose hid the mark beside it: 26 of 60 were found."""
    broken = c2pa_text.embed_manifest(TEXT, bytes(1500))[:-cut]
    assert without_manifests(broken + " and more") == TEXT + " and more"
    other = c2pa_text.embed_manifest(TEXT, bytes(10)).replace("\ufe01", "\ufe02", 1)  # version 2
    assert without_manifests(other) == TEXT


@given(st.lists(st.sampled_from(["a", "\U0001f600", "\u200b", "\u2060" * 12, "\ufe0f" * 9, "\U000e0041" * 10, " "])))
def test_unseen_runs(parts):
    """Runs of ten unseen characters and more go whole, shorter ones stay, wherever they stand."""
    runs = re.findall("([\u200b\u2060\ufe0f\U000e0041]*)([^\u200b\u2060\ufe0f\U000e0041]*)", "".join(parts))
    assert without_manifests("".join(parts)) == "".join(("" if len(run) > 9 else run) + text for run, text in runs)


def test_everyday_unseen_characters_stay():
    for text in (TEXT, "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "می\u200cخواهم " * 99):
        assert without_manifests(text) is text


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("comment", COMMENTS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_armour_is_cut_with_its_line(reference, comment, newline):
    for placement in c2pa_text.Placement:
        armoured = c2pa_text.embed_structured(TEXT, reference, *comment, placement, newline).text
        assert c2pa_text.extract_structured(armoured).reference == reference
        assert without_manifests(armoured) == TEXT
    front = f"---{newline}title: x{newline}%s---{newline}{TEXT}"
    block = c2pa_text.build_manifest_block_multiline(reference, newline) + newline
    assert without_manifests(front % block) == front % ""


def test_no_words_hide_in_armour():
    braille = "https://words\u2800that\u2800were\u2800marked"
    long = "https://" + "a" * 3000
    for inside in (
        "words that were marked", "https://example.com/ and words", "words\nhttps://example.com/", braille, long,
        "https://mots-marqués", "data:application/c2pa;base64,words.that.were.marked",
    ):  # fmt: skip
        text = f"# -----BEGIN C2PA MANIFEST----- {inside} -----END C2PA MANIFEST-----\n{TEXT}"
        assert without_manifests(text) == text


@pytest.mark.seconds
def test_texts_with_manifests_have_the_tokens_and_parts_that_they_have_without(marked):
    """In 200 marked texts: what every format scores is made of these tokens, of texts as they stand and normalised."""
    tokenizer, draw = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER)), random.Random(0)
    texts = [
        marked(i % 20, 60, i).replace(" ", " \u200b" * (i % 2) or " ") + "\n> quoted" * (i % 3) for i in range(200)
    ]

    def with_manifest(i: int, text: str) -> str:
        if i % 2:
            return c2pa_text.embed_structured(text, REFERENCES[i % 4 // 2], *COMMENTS[i % 5]).text
        place = draw.randrange(len(text)) if i % 4 else len(text)
        return text[:place] + c2pa_text.encode_wrapper(draw.randbytes(1500)) + text[place:]

    def read(stored: list[str]):
        batch = pa.array([text.encode() for text in stored], pa.large_binary())
        return read_texts(batch, lambda few: {"one": tokenizer.encode(few)}, normalised=True)

    plain, carried = read(texts), read([with_manifest(i, text) for i, text in enumerate(texts)])
    assert not plain.manifests.any()
    assert carried.manifests.all()
    assert (plain.tokens["one"].ids == carried.tokens["one"].ids).all()
    assert (plain.tokens["one"].offsets == carried.tokens["one"].offsets).all()
    assert (plain.normalised["one"].ids == carried.normalised["one"].ids).all()
    assert (plain.differing == carried.differing).all()
    assert plain.digests != carried.digests


def test_a_text_is_read_without_its_manifest_and_its_digest_is_of_all_of_it():
    stored = c2pa_text.embed_manifest(TEXT, b"manifest").encode()
    assert read_text(stored) == (TEXT, "", "")
    assert decode_text(stored)[0] == stored.decode()
