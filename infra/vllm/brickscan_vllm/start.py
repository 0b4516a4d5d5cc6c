"""Checks that keep a server from starting under a configuration whose text would be unmarked, or marked twice."""

import functools
import sys
from pathlib import Path
from typing import Any

from brickscan_vllm.marking import check_tokenizer, find_key
from brickscan_vllm.settings import Settings
from scanner.errors import Refused

CLASS = "brickscan_vllm.plugin:Marks"

Config = Any
"""vLLM's VllmConfig."""

_V1_LOADER = "vllm.v1.sample.logits_processor"
_V1_RUNNER = "vllm.v1.worker.gpu_model_runner"


def refuse_what_drops_the_mark() -> None:
    """Have vLLM refuse to decode speculatively, as an entry point of its general plugins.

    The V1 runner would then load no plugin for logits, without a word.
    """
    import importlib

    loader = importlib.import_module(_V1_LOADER)
    build = loader.build_logitsprocs
    if getattr(build, "of_brickscan", False):
        return

    @functools.wraps(build)
    def checked(vllm_config: Config, *rest: Any, **named: Any) -> Any:  # noqa: ANN401 - vLLM's own
        if vllm_config.speculative_config is not None:
            raise Refused(
                "vLLM's V1 runner drops the mark under speculative decoding: start it without --speculative-config, or "
                "with Model Runner V2"
            )
        return build(vllm_config, *rest, **named)

    checked.of_brickscan = True  # type: ignore[attr-defined]
    loader.build_logitsprocs = checked  # type: ignore[attr-defined]
    if _V1_RUNNER in sys.modules:
        sys.modules[_V1_RUNNER].build_logitsprocs = checked  # type: ignore[attr-defined]


def check_server(config: Config, settings: Settings, version: int) -> None:
    """Refuse a server that would not mark what it serves.

    Args:
        config: the server's configuration.
        settings: settings from its environment.
        version: version of the model runner.

    Raises:
        Refused: names the option that is in the way.
    """
    model, speculative = config.model_config, config.speculative_config
    if getattr(config, "watermark_config", None) is not None:
        raise Refused(
            "vLLM's own watermark is on, but a text carries only one mark; remove vLLM's option, or brickscan-vllm"
        )
    if getattr(model, "enable_trace_replay", False):
        raise Refused("trace replay replaces marked tokens with others: start vLLM without it")
    if getattr(model, "is_diffusion", False):
        raise Refused(
            "a diffusion model does not write tokens in order, but a mark depends on the previous tokens: not supported"
        )
    if getattr(speculative, "rejection_sample_method", None) == "synthetic":
        raise Refused("synthetic acceptance accepts unmarked drafts: choose another rejection_sample_method")
    if settings.logprobs and str(getattr(model, "logprobs_mode", "")).startswith("processed"):
        raise Refused(
            "processed logprobs show which tokens the mark raises: start vLLM with --logprobs-mode raw_logprobs, or "
            "without BRICKSCAN_LOGPROBS=1"
        )
    if version == 1 and config.scheduler_config.async_scheduling and CLASS not in (model.logits_processors or ()):
        raise Refused(
            "vLLM's V1 runner hides the newest tokens from plugins when it schedules asynchronously: start it with "
            f"--no-async-scheduling, or with --logits-processors {CLASS} as well, which makes it show them"
        )
    check_tokenizer(find_key(settings), tokenizer_file(model), str(model.tokenizer))


def tokenizer_file(model: Any) -> Path | None:  # noqa: ANN401 - vLLM's ModelConfig
    """Return the tokenizer.json of a served model, in its folder or in Hugging Face's local cache; None: not found."""
    local = Path(model.tokenizer) / "tokenizer.json"
    if local.is_file():
        return local
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model.tokenizer, "tokenizer.json", revision=model.tokenizer_revision)
    except (ImportError, ValueError):
        return None
    return Path(found) if isinstance(found, str) else None
