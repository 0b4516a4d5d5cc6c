"""Load tokenizers: the reference, Hugging Face `tokenizers`, and `fastokens` (the extra `fast`), tens of times as fast.

The fast one is trusted only as far as it was seen to agree with the reference: on golden strings when it is loaded, and
on a sample of the first texts. The reference tokenises every text that the fast one refuses. Golden strings are chosen
where tokenizers differ: every assigned block of Unicode, phrases in many scripts, emoji, literals of control tokens,
runs of white space, broken bytes, very long words, and mixtures of all of them.
"""

import hashlib
import importlib
import importlib.util
import json
import logging
import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import numpy as np
import tokenizers
import tokenizers.processors
from numpy.typing import NDArray

from scanner.errors import BackendUnlike, TokenizerError
from scanner.storage.locations import MOST_TOKENIZER, filesystem_of, is_uri, read_named
from scanner.watermark import Tokens, join_batches

SPLIT_BY_CHANCE = ("dropout", "alpha")
"""Fields of a tokenizer.json's `model` that training turns on. With them a text has other tokens each time.

BPE leaves out merges by chance, and Unigram samples. `tokenizers` 0.23 reads only the first field.
"""


def refuse_chance(fields: Mapping[str, object]) -> None:
    """Refuse a tokenizer whose model has such a field.

    Raises:
        ValueError: the model has one. The message names it and says what to do.
    """
    for field in SPLIT_BY_CHANCE:
        if share := fields.get(field):
            raise ValueError(
                f"its field model.{field} = {share} splits words at random, so a text has different tokens each time; "
                f'write "{field}": null there'
            )


def fields_of_chance(tokenizer: tokenizers.Tokenizer) -> dict[str, object]:
    """Return the fields of a loaded tokenizer that `refuse_chance` checks."""
    return {field: getattr(tokenizer.model, field, None) for field in SPLIT_BY_CHANCE}


CHUNK_CHARACTERS = 1_000_000
"""Number of characters that are tokenised at a time.

Besides the token ids, at most one chunk's encodings are in memory.
"""


class Tokenizer(Protocol):
    """An object that turns texts into token ids."""

    vocab_size: int

    @property
    def reference(self) -> "HuggingFaceTokenizer":
        """Return the reference tokenizer, by which flags are proved."""

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenise D texts without special tokens: ids uint32[N], offsets int64[D+1]."""


class HuggingFaceTokenizer:
    """The reference: Hugging Face `tokenizers`. It adds and reads no special tokens, and neither cuts nor pads.

    Raises:
        ValueError: the bytes are no tokenizer, or one that splits words by chance.
    """

    def __init__(self, data: bytes) -> None:
        try:
            self._inner = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises plain Exception
            raise ValueError(str(error)) from None
        refuse_chance(fields_of_chance(self._inner))
        self._inner.encode_special_tokens = True
        self._inner.no_truncation()
        self._inner.no_padding()
        self.data = data
        self.vocab_size: int = self._inner.get_vocab_size()

    @property
    def reference(self) -> "HuggingFaceTokenizer":
        """Return the tokenizer itself."""
        return self

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenise D texts without special tokens: ids uint32[N], offsets int64[D+1].

        Texts must contain no surrogates.
        """
        ids: list[np.ndarray[tuple[int], np.dtype[np.uint32]]] = [np.empty(0, np.uint32)]
        for chunk in _chunks(texts):
            encodings = self._inner.encode_batch_fast(chunk, add_special_tokens=False)
            ids.extend(np.array(encoding.ids, np.uint32) for encoding in encodings)
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(part) for part in ids[1:]], out=offsets[1:])
        return Tokens(np.concatenate(ids), offsets)

    def encode_with_offsets(self, text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Tokenise one text, and find the first character of each token and the one after its last.

        If a character has several tokens, it is the place of each of them.

        Returns:
            Token ids, uint32[N].
            Their places, int64[N, 2].
        """
        encoding = self._inner.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.uint32), np.array(encoding.offsets, np.int64).reshape(-1, 2)

    def begins(self, text: str) -> NDArray[np.int64]:
        """Return the character at which each token of one text begins, int64[N], in order.

        White space belongs to its token.

        If a character has several tokens, each of them begins there.
        """
        offsets = np.array(self._untrimmed.encode(text, add_special_tokens=False).offsets, np.int64).reshape(-1, 2)
        return np.asarray(np.maximum.accumulate(offsets[:, 0]), np.int64)

    @cached_property
    def _untrimmed(self) -> tokenizers.Tokenizer:
        """Return the same tokenizer without post-processing, which may remove white space from tokens' places."""
        inner = tokenizers.Tokenizer.from_buffer(self.data)
        inner.encode_special_tokens = True
        inner.no_truncation()
        inner.no_padding()
        inner.post_processor = tokenizers.processors.Sequence([])
        return inner


def _chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for text in texts:
        if chunk and size + len(text) > CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += len(text)
    if chunk:
        yield chunk


LAST_CHARACTER = 0x1FFFF
CHARACTERS_A_BLOCK = 0x80

PHRASES = (
    "The quick brown fox jumps over the lazy dog. It's 3.14, isn't it? I'LL say SO; we've GONE.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich — „Straße“, 1.234,56 €",
    "Voix ambiguë d’un cœur qui au zéphyr préfère les jattes de kiwis ; où ça ?",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia; ¿qué más? ¡Año!",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig. Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак, ґанок, ўсё.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ἐν ἀρχῇ ἦν ὁ λόγος",
    "いろはにほへと ちりぬるを。コンピュータで文字を扱う、2026年11月20日（金）。",
    "我能吞下玻璃而不伤身体。我能吞下玻璃而不傷身體，「你好」，世界！",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر، ١٢٣٤",
    "דג סקרן שט בים מאוכזב ולפתע מצא לו חברה, שָׁלוֹם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। १२३",
    "আমি কাঁচ খেতে পারি, তাতে আমার কোনো ক্ষতি হয় না।",
    "நான் கண்ணாடி சாப்பிடுவேன், అది నాకు హాని చేయదు, ನನಗೆ, എനിക്ക്",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ຂ້ອຍກິນແກ້ວໄດ້ ខ្ញុំ မြန်မာ",
    "გთხოვთ ახლავე. Կրնամ ապակի ուտել. የሰው ሀገር",
    "def f(x: int) -> str:\n    return f'{x!r:>10}'  # TODO(#42)\n\tif (a&&b) { i++; }\r\n",
    "https://example.org/a_b-c?q=%20&x=1#y user.name+tag@mail.example 192.168.0.1 C:\\Temp\\x.txt",
    "camelCase PascalCase snake_case SCREAMING_CASE kebab-case x86_64 v1.2.3-rc1 1e-9 0xDEADBEEF 1,000,000",
    '<div class="a">&amp;</div> {"k": [1, null, true]} $\\frac{a}{b}$ | a | b |\n|---|---|',
)

EMOJI = "😀 👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 1️⃣ ❤️‍🔥 🏴󠁧󠁢󠁳󠁣󠁴󠁿 ☺︎ ☺️ ⚧ 🫠🫨"

SPACES = (" ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u3000", "\u2003", "\u200b", "\u2028", "\ufeff", "\x85", "\v", "\f")

CONTROLS = (
    "<s>", "</s>", "<unk>", "<pad>", "<mask>", "[INST]", "[/INST]", "<<SYS>>", "<|endoftext|>", "<|im_start|>",
    "<|im_end|>", "<|eot_id|>", "<|begin_of_text|>", "<0x0A>", "<0xFF>", "▁", "▁▁", "Ġ", "Ċ", "ĠĠ", "##ing", "</w>",
)  # fmt: skip

BROKEN = (
    "\ufffd",
    "a\ufffd\ufffdb",
    "\0",
    "a\0b",
    "\0\0\0",
    "\x01\x1f\x7f\x80\x9f",
    "\ufffe\uffff",
    "\U0010ffff",
    "\ue000",
)


def golden_strings(tokenizer_json: bytes) -> list[str]:
    """Return several hundred strings, with the literals of a tokenizer's own added tokens in several places."""
    literals = [str(token["content"]) for token in json.loads(tokenizer_json).get("added_tokens") or ()]
    strings = ["", *PHRASES, *EMOJI.split(), EMOJI, EMOJI.replace(" ", ""), *_blocks(), *_white_space(), *_long_words()]
    for literal in dict.fromkeys((*CONTROLS, *literals[:50])):
        strings += [literal, f"a {literal} b", f"a{literal}b{literal}{literal}", f" {literal}\n{literal[:-1]}"]
    strings += [*BROKEN, bytes(range(256)).decode(errors="replace"), bytes(range(256)).decode("latin-1")]
    for phrase in PHRASES:
        strings += [phrase.upper(), f"  {phrase} ", phrase.replace(" ", ""), *_other_forms(phrase)]
        cut = phrase.encode()
        strings += [cut[1:-1].decode(errors="replace"), cut[: len(cut) // 2].decode(errors="replace")]
    return strings + _mixtures(strings)


def _blocks() -> list[str]:
    """Return every assigned character up to LAST_CHARACTER, a block at a time, side by side and one by one."""
    blocks = []
    for start in range(0, LAST_CHARACTER, CHARACTERS_A_BLOCK):
        block = [
            chr(c)
            for c in range(start, start + CHARACTERS_A_BLOCK)
            if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")
        ]
        if block and not 0x3500 <= start < 0x9F00 and not 0xAD00 <= start < 0xD700 and not 0x17080 <= start < 0x18C80:
            blocks += ["".join(block), " ".join(block[:: 1 if start < 0x3000 else 4])]
    return blocks


def _white_space() -> list[str]:
    runs = [space * count for space in SPACES for count in (1, 2, 3, 4, 7, 8, 15, 16, 31, 33, 64, 300)]
    pairs = [f"a{first}{second}{second}b{second}" for first, second in product(SPACES, SPACES)]
    return runs + [f"x{run}y" for run in runs[::3]] + pairs


def _long_words() -> list[str]:
    letters = np.random.default_rng(0).integers(97, 123, 3000, dtype=np.uint8).tobytes().decode()
    words = [
        "0" * 999,
        "…" * 500,
        "a" * 5000,
        "ab" * 2000,
        letters,
        letters.upper(),
        letters.title(),
        "é" * 2000,
        "漢" * 1500,
        "🙂" * 700,
    ]
    return [
        *words,
        "1234567890" * 200,
        "0" * 999,
        "=" * 1500,
        "-" * 80,
        "…" * 500,
        "'" * 300,
        "ا" * 1500,
        "e\u0301" * 800,
        "🙂" * 700,
    ]


def _other_forms(phrase: str) -> list[str]:
    forms = {unicodedata.normalize(form, phrase) for form in ("NFC", "NFD", "NFKC", "NFKD")} - {phrase}
    return sorted(forms)


def _mixtures(strings: list[str]) -> list[str]:
    generator = np.random.default_rng(1)
    mixtures = []
    for _ in range(150):
        pieces = []
        for place in generator.integers(len(strings), size=6).tolist():
            source = strings[place]
            begin = int(generator.integers(max(len(source) - 12, 1)))
            pieces.append(source[begin : begin + 12])
        mixtures.append("".join(pieces))
    return mixtures


SAMPLE_TEXTS, SAMPLE_CHARACTERS = 256, 200_000
"""Number of first texts that both backends tokenise, and of their characters."""

_log = logging.getLogger(__name__)
Scalar = TypeVar("Scalar", np.uint32, np.int64)


class FastTokenizer:
    """A tokenizer that agrees with the reference.

    Raises:
        BackendUnlike: `fastokens` is not installed, cannot load these bytes, or gives other tokens for a golden string.
    """

    def __init__(self, data: bytes, reference: HuggingFaceTokenizer) -> None:
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")  # a worker has one core; read when the library is loaded
        try:
            library: Any = importlib.import_module("fastokens")
        except ImportError:
            raise BackendUnlike("fastokens is not installed") from None
        try:
            self._inner: Any = library.Tokenizer.from_json_str(data.decode())
            self._inner.no_truncation()
        except BaseException as error:
            _end_if_required(error)
            raise BackendUnlike(f"fastokens cannot load it ({type(error).__name__}: {str(error)[:200]})") from None
        self.vocab_size = reference.vocab_size
        self.reference = reference
        self._trusted = True
        self._texts, self._characters = SAMPLE_TEXTS, SAMPLE_CHARACTERS  # still to be compared
        self._compare(golden_strings(data))

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenise D texts without special tokens: ids uint32[N], offsets int64[D+1].

        Texts must contain no surrogates.
        """
        sample: list[str] = []
        for text in texts[: self._texts] if self._trusted else ():
            if self._characters <= 0:
                break
            sample.append(text[: self._characters])
            self._characters -= len(text)
        self._texts -= len(sample)
        if sample:
            try:
                self._compare(sample)
            except BackendUnlike as error:
                _log.warning("%s; Hugging Face tokenizers is used instead, which is slower", error)
                self._trusted = False
        return self._encode(texts) if self._trusted else self.reference.encode(texts)

    def _encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenise texts.

        The reference reads those that the backend refuses, for example for a byte outside the vocabulary.
        """
        batches, todo = list[Tokens](), [texts]
        while todo:
            batch = todo.pop()
            try:
                ids, offsets = self._inner.encode_batch_flat(list(batch), False, True)
            except BaseException as error:
                _end_if_required(error)
                half = len(batch) // 2
                if half:  # halve down to the refused text
                    todo += [batch[half:], batch[:half]]
                else:
                    batches.append(self.reference.encode(batch))
            else:
                batches.append(Tokens(_array(ids, np.uint32), _array(offsets, np.int64)))
        return join_batches(batches)

    def _compare(self, texts: Sequence[str]) -> None:
        expected, actual = self.reference.encode(texts), self._encode(texts)
        if np.array_equal(expected.ids, actual.ids) and np.array_equal(expected.offsets, actual.offsets):
            return
        for i, text in enumerate(texts):
            a, b = (tokens.ids[tokens.offsets[i] : tokens.offsets[i + 1]].tolist() for tokens in (expected, actual))
            if a != b:
                raise BackendUnlike(f"fastokens reads {text[:40]!r} as {b[:8]}, not as {a[:8]}")


def _array(buffer: bytes, kind: type[Scalar]) -> NDArray[Scalar]:
    """View a buffer as an array, without a copy."""
    # It is marked writable, although no code writes to it, because numba compiles kernels anew for read-only arrays. An
    # empty one is made anew, because it has no place in memory.
    read_only = np.frombuffer(buffer, kind)
    if not len(read_only):
        return read_only.copy()
    interface = read_only.__array_interface__ | {"data": (read_only.__array_interface__["data"][0], False)}
    return np.asarray(SimpleNamespace(__array_interface__=interface, buffer=read_only))  # kept alive with the array


def _end_if_required(error: BaseException) -> None:
    """Raise errors again that end the process.

    A panic of the library is no Exception, but it concerns only one text.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error


def sha256_file(path: Path) -> str:
    """Compute the SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(read_named(path, MOST_TOKENIZER)).hexdigest()


def advise_fast_backend() -> str | None:
    """Return the time that a scan would save with the fast backend, in words. None if it is installed."""
    if importlib.util.find_spec("fastokens") is not None:
        return None
    return (
        "fastokens is not installed here, so tokenising takes about five times the CPU: `pip install fastokens` where "
        "there is a wheel of it for this machine"
    )


def load_tokenizer(path: Path | str, sha256: str, *, fast: bool = True) -> Tokenizer:
    """Load a tokenizer.json, a path or URI, after checking that it is the pinned one.

    The same bytes are hashed and loaded. The fast backend is used if it is installed and agrees with the reference. If
    not, a warning says why. With `fast` false it is not loaded, because loading it pays only for thousands of texts.

    Raises:
        TokenizerError: the file is missing, unreadable, another one, or no tokenizer.
    """
    try:
        data = _read(path)
    except OSError as error:
        raise TokenizerError(
            f"tokenizer {path}: cannot be read ({error.strerror or error}); put the file there"
        ) from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise TokenizerError(
            f"tokenizer {path}: its SHA-256 is {digest}, but {sha256} is pinned; restore the pinned file, since any "
            "other would read marked text as unmarked"
        )
    try:
        reference = HuggingFaceTokenizer(data)
    except ValueError as error:
        raise TokenizerError(f"tokenizer {path}: is not a tokenizer.json that can be loaded: {error}") from None
    if not fast:
        return reference
    try:
        return FastTokenizer(data, reference)
    except BackendUnlike as error:
        _log.warning("tokenizer %s: %s; Hugging Face tokenizers is used instead, which is slower", path, error)
    return reference


def _read(path: Path | str) -> bytes:
    if not is_uri(path):
        return read_named(path, MOST_TOKENIZER)
    filesystem, inner = filesystem_of(str(path))
    with filesystem.open_input_file(inner) as file:
        return bytes(file.read())
