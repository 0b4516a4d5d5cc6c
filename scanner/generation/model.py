"""Run a local causal language model, with the tokenizer.json beside it. Nothing is ever downloaded.

Its view of a text is the probability of each token given the tokens before it. It is computed in batches on the model's
device. As a reader of texts that it did not write, it has no prompt, and tells how much each character surprised it.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.auto_factory import _BaseAutoModelClass
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from scanner.errors import BrickscanError, Refused, TokenizerError
from scanner.generation.processor import check_sampling, sampling_weights
from scanner.printable import printable
from scanner.storage.locations import MOST_TOKENIZER, read_named
from scanner.storage.model_folders import check_model_folder
from scanner.text import HuggingFaceTokenizer
from scanner.text.tokenizers import fields_of_chance, refuse_chance
from scanner.watermark.level_laws import CHARACTERS_READ, of_characters
from schemas.config import ReaderDtype


@dataclass(frozen=True)
class LocalModel:
    """A model, its tokenizer and the writer of its chats. `load_model` makes it."""

    model: PreTrainedModel
    tokenizer: Tokenizer
    tokenizer_sha256: str
    chat: PreTrainedTokenizerBase | None  # used only for its chat template; tokens always come from `tokenizer`
    eos_ids: tuple[int, ...]

    def encode(self, prompts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokenise prompts, as user turns of the model's chat template if it has one, padded on the left.

        Returns:
            ids: int64 [B, W].
            attention mask: int64 [B, W], 0 on the padding.
        """
        encoded = _encode(self.tokenizer, self.chat, prompts)
        width = max(len(ids) for ids in encoded)
        ids = torch.full((len(encoded), width), self.pad_id)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(encoded):
            ids[row, width - len(tokens) :] = torch.tensor(tokens)
            mask[row, width - len(tokens) :] = 1
        return ids, mask

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens, without control tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    @property
    def vocabulary(self) -> int:
        """Return the number of tokens that the tokenizer knows: one more than the largest id."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def positions(self) -> int | None:
        """Return how many tokens a prompt and its completion may have together. None: the model sets no limit."""
        return _positions(self.model.config)

    @property
    def pad_id(self) -> int:
        """Return the token that fills up rows. No mark and no text depends on it."""
        return self.eos_ids[0] if self.eos_ids else 0


def load_model(folder: Path, threads: int = 1, device: str = "cpu", dtype: ReaderDtype = "float32") -> LocalModel:
    """Load a model from a folder in transformers' format (config.json, weights, tokenizer.json).

    Args:
        folder: the model's folder.
        threads: CPU threads of torch in this process. More than one is slower when other cores are busy.
        device: where the model runs.
        dtype: precision of its weights.

    Raises:
        Refused: there is no such device, check_model_folder refuses the folder, the model cannot be loaded, or it gives
            no probabilities in this precision.
        TokenizerError: tokenizer.json is missing, is no tokenizer, or knows tokens that the model does not.
    """
    file, named = folder / "tokenizer.json", f"model {str(folder)!r}"
    check_model_folder(folder, named)
    if device != "cpu" and not torch.cuda.is_available():
        raise Refused(f"device {device!r}: torch {torch.__version__} finds no CUDA device; write on the CPU")
    tokenizer, sha256 = _load_tokenizer(file)
    torch.set_num_threads(threads)
    model = load_pretrained(AutoModelForCausalLM, folder, named, getattr(torch, dtype)).to(device).eval()
    with refused_alike(named):
        eos = model.generation_config.eos_token_id
        loaded = LocalModel(
            model=model,
            tokenizer=tokenizer,
            tokenizer_sha256=sha256,
            chat=_load_chat(folder, named),
            eos_ids=() if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
        )
        known: int = model.get_input_embeddings().weight.shape[0]
        if loaded.vocabulary > known:
            raise TokenizerError(
                f"tokenizer {file}: knows {loaded.vocabulary} tokens, but the model in its folder {known}; it is not "
                "this model's tokenizer"
            )
        (log_p,) = token_log_probabilities(loaded, [tokenizer.encode(SAMPLE_TEXT).ids])
        if np.isnan(log_p[1:]).any():
            raise Refused(f"{named}: gives no probabilities in {dtype}; choose another dtype, for example float32")
    return loaded


def load_pretrained(auto: type[_BaseAutoModelClass], folder: Path, named: str, dtype: torch.dtype) -> Any:  # noqa: ANN401
    """Load a model of transformers from a folder that `check_model_folder` accepts.

    It asks no hub, and runs no code from the folder.

    named: name of the folder in errors.

    Raises:
        Refused: it cannot be loaded, or lacks weights, which would then be drawn at random.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # a table of weights that do not fit
    check_model_folder(folder, named)
    with refused_alike(named):
        kind = json.loads(read_named(folder / "config.json")).get("model_type")
        if kind not in CONFIG_MAPPING:
            raise Refused(
                f"{named}: config.json names the model_type {printable(str(kind), 60)!r}, which transformers "
                f"{transformers.__version__} does not have; take a model of another type"
            )
        model, found = auto.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        # a pooler is only for sentences, and unused
        lacking = sorted(name for name in found["missing_keys"] if "pooler" not in name)
        if lacking:
            raise Refused(f"{named}: its weights lack {lacking[0]} and {len(lacking) - 1} more; save the model again")
    return model


@contextmanager
def refused_alike(named: str) -> Iterator[None]:
    """Turn any error of transformers about the files of a folder into a refusal.

    named: name of the folder in errors.
    """
    try:
        yield
    except BrickscanError:
        raise
    except Exception as error:
        # the library's own sentences advise on its arguments; only the file format's library states facts
        fact = f": {printable(str(error), 200)}" if type(error).__module__.startswith("safetensors") else ""
        raise Refused(
            f"{named} cannot be used by transformers {transformers.__version__} ({type(error).__name__}{fact}): its "
            "files are damaged or do not belong together; save it again with `save_pretrained`"
        ) from None


def prompt_lengths(folder: Path, prompts: Sequence[str]) -> tuple[list[int], int | None]:
    """Count each prompt's tokens in the form that a folder's model gets it, without loading the model.

    Returns:
        The number of tokens of each prompt.
        The model's `positions`.

    Raises:
        Refused: check_model_folder refuses the folder, or config.json is not valid.
        TokenizerError: tokenizer.json is missing or is no tokenizer.
    """
    tokenizer, _ = _load_tokenizer(folder / "tokenizer.json")
    named = f"model {str(folder)!r}"
    check_model_folder(folder, named)
    with refused_alike(named):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        lengths = [len(ids) for ids in _encode(tokenizer, _load_chat(folder, named), prompts)]
        return lengths, _positions(config.get_text_config())


def _load_tokenizer(file: Path) -> tuple[Tokenizer, str]:
    """Load a tokenizer.json, and compute its SHA-256.

    Raises:
        TokenizerError: it cannot be loaded.
    """
    try:
        content = read_named(file, MOST_TOKENIZER)
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
        refuse_chance(fields_of_chance(tokenizer))
    except OSError as error:
        raise TokenizerError(
            f"tokenizer {file}: cannot be read ({error.strerror}); the model's own tokenizer is needed"
        ) from None
    except Exception as error:  # tokenizers raises bare Exception for a file that it cannot parse
        raise TokenizerError(f"tokenizer {file}: is not a tokenizer.json of Hugging Face tokenizers: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, hashlib.sha256(content).hexdigest()


def _load_chat(folder: Path, named: str) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer that writes the chats of a folder's model, if it has a template for them."""
    if not (folder / "tokenizer_config.json").is_file():
        return None
    with refused_alike(named):
        chat = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return chat if chat.chat_template else None


def _encode(tokenizer: Tokenizer, chat: PreTrainedTokenizerBase | None, prompts: Sequence[str]) -> list[list[int]]:
    if chat is None:
        return [tokenizer.encode(prompt).ids for prompt in prompts]
    turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
    with refused_alike("the chat template of the model"):
        texts = chat.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def _positions(config: PretrainedConfig) -> int | None:
    return getattr(config, "max_position_embeddings", None)


BATCH_TOKENS = 2048
"""Number of tokens that go through the model at a time, padding included."""

TOKENS_A_WINDOW = 2048
"""Number of tokens that the model sees at a time.

A longer text is cut, and each part sees half as many tokens before it.
"""

LOGIT_ROWS = 128
"""Number of rows of logits that are looked at together."""


def token_log_probabilities(
    model: LocalModel,
    texts: Sequence[ArrayLike],
    contexts: Sequence[Sequence[int]] | None = None,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> list[NDArray[np.float64]]:
    """Compute ln p of every token of some texts, as sampling with these parameters would draw it.

    Args:
        model: a local model.
        texts: token ids of its tokenizer.
        contexts: tokens before each text when it was written, such as the prompt in its chat template. None: unknown.
        temperature: as for marking (GumbelProcessor).
        top_k: as for marking.
        top_p: as for marking.

    Returns:
        float64 for each token of each text. −∞ for a token that top-k or top-p leaves out. NaN for a first token
        without context, which the model cannot judge.

    Raises:
        Refused: sampling parameters cannot be right.
    """
    check_sampling(temperature, top_k, top_p)
    before = [()] * len(texts) if contexts is None else contexts
    whole = [np.concatenate([context, text]).astype(np.int64) for context, text in zip(before, texts, strict=True)]
    found = [np.full(len(ids), np.nan) for ids in whole]
    longest = min(TOKENS_A_WINDOW, getattr(model.model.config, "max_position_embeddings", TOKENS_A_WINDOW))
    parts = [(d, *part) for d, ids in enumerate(whole) for part in _parts(len(ids), len(before[d]), longest)]
    for batch in _batches(parts):
        rows = [whole[d][begin:end] for d, begin, _, end in batch]
        for (d, begin, first, end), logits in zip(batch, _logits(model, rows), strict=True):
            targets = whole[d][first:end]
            # the logits at a place are for the token after it
            found[d][first:end] = _of(logits[first - begin - 1 : end - begin - 1], targets, temperature, top_k, top_p)
    return [ids[len(context) :] for ids, context in zip(found, before, strict=True)]


def _parts(length: int, context: int, longest: int) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, first, end) of parts that the model sees as a whole. Each gives ln p of tokens first … end−1."""
    first = max(context, 1)
    while first < length:
        begin = max(0, first - longest // 2) if length > longest else 0
        end = min(length, begin + longest)
        yield begin, first, end
        first = end


def _batches(parts: list[tuple[int, int, int, int]]) -> Iterator[list[tuple[int, int, int, int]]]:
    """Yield parts of similar length together, at most BATCH_TOKENS with padding, or a single part."""
    batch: list[tuple[int, int, int, int]] = []
    for part in sorted(parts, key=lambda part: part[3] - part[1]):
        if batch and (len(batch) + 1) * (part[3] - part[1]) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch


def _logits(model: LocalModel, rows: Sequence[NDArray[np.int64]]) -> torch.Tensor:
    """Compute logits [B, W, |V|] of rows that are padded on the right, where no other token can see the padding."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), model.pad_id)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.from_numpy(row)
        mask[i, : len(row)] = 1
    device = model.model.device
    with torch.inference_mode():
        return model.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits  # type: ignore[no-any-return]


def _of(
    logits: torch.Tensor, targets: NDArray[np.int64], temperature: float, top_k: int, top_p: float
) -> NDArray[np.float64]:
    """Compute ln p of one token for each row of logits."""
    out = np.empty(len(targets))
    for start in range(0, len(targets), LOGIT_ROWS):
        some, wanted = logits[start : start + LOGIT_ROWS].float(), targets[start : start + LOGIT_ROWS]
        if top_k or top_p < 1:
            weights = (sampling_weights(row, temperature, top_k, top_p) for row in some.cpu().numpy())
            with np.errstate(divide="ignore"):
                out[start : start + len(wanted)] = [
                    np.log(w[v] / w.sum()) for w, v in zip(weights, wanted, strict=True)
                ]
            continue
        scaled = some.double() / temperature
        at = torch.from_numpy(wanted).to(scaled.device)[:, None]
        out[start : start + len(wanted)] = (scaled.gather(1, at)[:, 0] - scaled.logsumexp(1)).cpu().numpy()
    return out


FIRST_SURPRISE = 4.0
"""Surprise of a text's first token. No model can judge it without a prompt."""

SAMPLE_TEXT = "It was a quiet day at the harbour, and nobody on the pier had expected a ship. "
"""Ordinary text with which a model is tried."""


class TextReader:
    """A model that reads texts at temperature 1. Its own tokenizer does not read control tokens.

    Args:
        folder: the model's folder, as for `load_model`.
        device: as for `load_model`.
        dtype: as for `load_model`.

    Raises:
        Refused: as `load_model`.
        TokenizerError: as `load_model`.
    """

    def __init__(self, folder: Path, device: str = "cpu", dtype: ReaderDtype = "float32") -> None:
        self._model: LocalModel = load_model(folder, device=device, dtype=dtype)
        for weights in (*self._model.model.parameters(), *self._model.model.buffers()):
            weights.data = weights.data.clone()  # without a copy they are the file's own pages, and change with it
        self._tokenizer = HuggingFaceTokenizer(read_named(folder / "tokenizer.json", MOST_TOKENIZER))

    def surprise(self, texts: Sequence[str]) -> list[NDArray[np.uint8]]:
        """Compute steps of surprise of each text's first CHARACTERS_READ characters (scanner.watermark.level_laws).

        Returns:
            uint8 for each read character of each text.
        """
        texts = [text[:CHARACTERS_READ] for text in texts]
        tokens = self._tokenizer.encode(texts)
        log_p = token_log_probabilities(self._model, np.split(tokens.ids, tokens.offsets[1:-1]))
        return [
            of_characters(np.nan_to_num(-of_text, nan=FIRST_SURPRISE), self._tokenizer.begins(text), len(text))
            for text, of_text in zip(texts, log_p, strict=True)
        ]
