"""Record next-token distributions of a real model for the probe's benches: `python -m tests.bench.record_chances`.

The model answers the demo's prompts at a temperature of 1. The chances of its likeliest tokens at each place are
written to tests/probe/recorded_chances.npy, float16[answers, tokens, 16], largest first. `make model` installs it.
"""

import argparse
from pathlib import Path

import numpy as np

from jobs.demo import HERE
from tests.probe.planted import RECORDED
from tests.support.from_packages import MODEL

CANDIDATES = 16


def record(model_folder: Path, answers: int, length: int, seed: int) -> np.ndarray:
    """Return the chances of the likeliest tokens: float16[answers, length, CANDIDATES]."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    prompts = (HERE / "prompts.txt").read_text(encoding="utf-8").splitlines()
    recorded = []
    with torch.inference_mode():
        for number in range(answers):
            prompt = [{"role": "user", "content": prompts[number % len(prompts)]}]
            text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
            ids = tokenizer(text, return_tensors="pt").input_ids
            cache, chances = None, []
            for _ in range(length):
                step = model(ids, past_key_values=cache, use_cache=True)
                likely = torch.softmax(step.logits[0, -1].double(), 0)
                chances.append(torch.topk(likely, CANDIDATES).values.numpy())
                ids, cache = torch.multinomial(likely, 1)[None], step.past_key_values
            recorded.append(chances)
    return np.array(recorded, np.float16)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.record_chances", description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--answers", type=int, default=64)
    parser.add_argument("--length", type=int, default=120, help="tokens of an answer")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    np.save(RECORDED, record(options.model, options.answers, options.length, options.seed))
    print(f"wrote {RECORDED}: {RECORDED.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
