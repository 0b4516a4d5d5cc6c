"""Write known answers of SBW by its package: `python -m tests.watermark.sbw.write_answers FOLDER`.

FOLDER holds the package `sbw` 1.0.0 as its wheel has it. With TORCHDYNAMO_DISABLE=1 its Philox needs no compiler; the
numbers are the same.
"""

import json
import random
import sys
from pathlib import Path

import torch

SHIPPED = Path(__file__).parents[3] / "scanner/watermark/stacks/sbw/sbw.json"
SCHEMES = {
    ("selfhash", 4): "gpu-fused-selfhash-fullvocab",
    ("selfhash", 2): "gpu-ff-anchored_minhash_prf-2-True",
    ("minhash", 4): "gpu-minhash",
    ("minhash", 1): "gpu-ff-minhash_prf-1-False",
    ("additive", 1): "gpu-simple_1",
    ("additive", 4): "gpu-fused-simple_4",
}
VOCABULARY = 50_000


def main(folder: str) -> None:
    """Write the file that ships."""
    sys.path.insert(0, folder)
    from sbw import WatermarkDetector  # type: ignore[import-not-found]

    draw, cases = random.Random(0), []
    for (seeding, width), scheme in SCHEMES.items():
        for hash_key, gamma in ((15485863, 0.5), (2**62 + 4097, 0.25), (draw.randrange(1, 2**62) | 1, 0.1)):
            detector = WatermarkDetector(
                torch.device("cpu"), object(), [0] * VOCABULARY, gamma, 2.0, scheme, hash_key, normalizers=[],
                ignore_repeated_ngrams=False,
            )  # fmt: skip
            tokens = [0, 0, 0, 0, 0, 0, *(draw.randrange(VOCABULARY) for _ in range(30)), VOCABULARY - 1]
            tokens += tokens[10:16]
            found = detector._score_sequence(torch.tensor(tokens), return_green_token_mask=True)
            windows = torch.tensor(tokens).unfold(0, width, 1)
            of_windows = detector.watermark._compute_seeds(windows).tolist()
            cases.append(
                {
                    "seeding": seeding, "context_width": width, "gamma": gamma, "hash_key": str(hash_key),
                    "tokens": tokens, "num_tokens_scored": found["num_tokens_scored"],
                    "num_green_tokens": found["num_green_tokens"],
                    "green_token_mask": [int(green) for green in found["green_token_mask"]],
                    "seeds": [str(seed) for seed in (of_windows if seeding == "selfhash" else of_windows[:-1])],
                }
            )  # fmt: skip
    SHIPPED.write_text(json.dumps({"sbw": cases}, separators=(",", ":")) + "\n", encoding="ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
