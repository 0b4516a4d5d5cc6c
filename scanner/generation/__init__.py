"""Marking text: logits processors for transformers, and completions of a local model. Imports torch: import it late."""

from scanner.generation.mark import Completion, Sampling, complete, marking_of
from scanner.generation.model import (
    LocalModel,
    TextReader,
    load_model,
    load_pretrained,
    prompt_lengths,
    refused_alike,
    token_log_probabilities,
)
from scanner.generation.processor import GreenListProcessor, GumbelProcessor, check_prompts

__all__ = [
    "Completion",
    "GreenListProcessor",
    "GumbelProcessor",
    "LocalModel",
    "Sampling",
    "TextReader",
    "check_prompts",
    "complete",
    "load_model",
    "load_pretrained",
    "marking_of",
    "prompt_lengths",
    "refused_alike",
    "token_log_probabilities",
]
