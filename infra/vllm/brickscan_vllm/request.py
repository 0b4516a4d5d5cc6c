"""The reading of a request: whom it is marked for and how it is sampled. Requests that no mark survives are refused.

`params` is vLLM's SamplingParams, read by its attributes, so that nothing here imports vLLM.
"""

import math
from typing import Any, NamedTuple

from brickscan_vllm.marking import check_message, find_key
from brickscan_vllm.settings import Settings, check_token
from scanner.errors import Refused
from schemas.registry import MasterKey

MESSAGE, TOKEN = "brickscan_message", "brickscan_token"
"""Keys that a gateway puts into `vllm_xargs`."""

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
"""Fields of a request that are computed with as float64."""

_GREEDY = 1e-5
"""Temperature below which vLLM is greedy."""

Params = Any
"""vLLM's SamplingParams."""


class MarkRequest(NamedTuple):
    """The wishes of a request. top_k: 0 keeps all; penalties: repetition, frequency, presence, (1, 0, 0) are none."""

    message: int
    for_service: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    penalties: tuple[float, float, float]


class Refusal(Refused):
    """A request that is not served, with a word for the count of refusals."""

    def __init__(self, why: str, text: str) -> None:
        super().__init__(text)
        self.why = why


def read_request(params: Params, key: MasterKey, service_message: int | None) -> MarkRequest:
    """Read a request.

    Raises:
        Refusal: it names no user, or nobody holds the message, or it cannot be marked.
    """
    given = (params.extra_args or {}).get(MESSAGE)
    message = service_message if given is None else given
    if given is None:
        _refuse_beams(params)
    if message is None:
        raise Refusal(
            "no_message",
            f"vllm_xargs.{MESSAGE} is missing: every text of this server is marked for a user; send requests through "
            "the gateway, which sets it",
        )
    if isinstance(message, bool) or not isinstance(message, int):
        raise Refusal("bad_message", f"vllm_xargs.{MESSAGE} = {message!r} is not a message; a whole number is needed")
    try:
        check_message(key, message, f"vllm_xargs.{MESSAGE}")
    except Refused as error:
        raise Refusal("bad_message", str(error)) from None
    _refuse_numbers_that_cannot_be_computed_with(params)
    if key.format.startswith("gumbel"):
        _refuse_what_gumbel_cannot_mark(params)
    return MarkRequest(
        message,
        given is None,
        params.temperature,
        max(params.top_k, 0),
        params.top_p,
        params.min_p,
        (params.repetition_penalty, params.frequency_penalty, params.presence_penalty),
    )


class Reads:
    """Reads requests that were let in, by a record of the key that may be newer than the one this worker began with."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._record = settings, find_key(settings)

    def __call__(self, params: Params) -> MarkRequest:
        """Return the reading of a request. Raises as `read_request` and `find_key` do."""
        try:
            return read_request(params, self._record, self._settings.service_message)
        except Refused:
            self._record = find_key(self._settings)
            return read_request(params, self._record, self._settings.service_message)


def check_request_token(params: Params, key: MasterKey, marking: MarkRequest, secret: bytes | None, now: float) -> None:
    """Refuse a message that the gateway did not sign, where there is a secret to sign with.

    Raises:
        Refusal: the token is missing, is another's, or has expired.
    """
    if secret is None or marking.for_service:
        return
    try:
        check_token(secret, key.key_id, marking.message, params.extra_args.get(TOKEN), now)
    except Refused as error:
        raise Refusal("bad_token", f"vllm_xargs.{error}") from None


def steered_by(params: Params) -> list[str]:
    """Fields by which a request restricts the tokens that may come.

    The mark is in the chosen tokens. A scan does not find it where a tokenizer would make other tokens of the text, as
    it does of text that is spelled letter by letter.
    """
    names = ("structured_outputs", "allowed_token_ids", "logit_bias", "bad_words")
    return [name for name in names if getattr(params, name, None)]


def refuse_probabilities(params: Params) -> None:
    """Refuse a request for probabilities: with them, whoever scores tokens one by one writes unmarked text.

    vLLM's own limit, --max-logprobs 0, lets `0` through: the probability of the written token.

    Raises:
        Refusal: names the field.
    """
    for name in ("logprobs", "prompt_logprobs", "logprob_token_ids", "prompt_logprob_token_ids"):
        if getattr(params, name, None) is not None:
            raise Refusal(
                "logprobs",
                f"{name}: this server does not return probabilities, since they would be those of unmarked text; "
                "leave it out (the operator can allow it with BRICKSCAN_LOGPROBS=1)",
            )


def _refuse_numbers_that_cannot_be_computed_with(params: Params) -> None:
    """Raise Refusal for numbers that float64 does not hold: they would end the request, or the server, later on."""
    for name in _SAMPLING:
        try:
            fits = math.isfinite(getattr(params, name))
        except (OverflowError, TypeError):
            fits = False
        if not fits:
            raise Refusal("bad_number", f"{name} is not a finite float64; allowed: up to ±1.8e308")


def _refuse_what_gumbel_cannot_mark(params: Params) -> None:
    """Raise Refusal for requests whose text would be unmarked, or the same each time."""
    if params.temperature < _GREEDY or params.top_k == 1:
        raise Refusal(
            "greedy",
            f"temperature = {params.temperature}, top_k = {params.top_k}: this server's Gumbel mark is in the choice "
            "among tokens, and greedy decoding has no choice; ask for a temperature above 0, such as 0.7, and more "
            "tokens",
        )
    if params.n > 1:
        raise Refusal(
            "n",
            f"n = {params.n}: under this server's Gumbel mark the same prompt and message give the same text; ask "
            "once, or reword the prompt for each",
        )


def _refuse_beams(params: Params) -> None:
    """Refuse beam search: it asks for one token at a time, without a user, and chooses by logits without the mark."""
    if params.max_tokens == 1 and params.logprobs and not params.detokenize:
        raise Refusal("beams", "beam search compares whole texts by unmarked probabilities; ask for sampling instead")
