"""Mark what a local model writes for a user in your own code, then find the mark and its user.

    python docs/examples/mark_and_find.py MODEL_FOLDER REGISTRY "Once upon a time there was a"

MODEL_FOLDER holds a transformers model with its tokenizer.json; REGISTRY is a folder that is made here. `make model`
installs what this needs, and a small model.
"""

import sys
from pathlib import Path

import brickscan
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from scanner.registry import add_users, new_key  # insides: commands make keys and users, as `brickscan keys new` does

NEW_TOKENS = 200


def main(model_folder: Path, registry: Path, prompt: str) -> None:
    """Make a key and two users, have the model write for one of them, and look whose text it is."""
    # a key for 1,000 groups of 1,000 users each, and two of these users
    tokenizer = model_folder / "tokenizer.json"
    how = {"window": 4, "gamma": "1/4", "groups": 1_000}
    new_key(registry, "first", format="greenlist-v3", messages=1_000_000, tokenizer=tokenizer, **how)
    add_users(registry, ["first"], ["alice", "bob"])

    text = write_for("alice", registry, model_folder, prompt)

    verdict = brickscan.open(registry).check(text)
    print("flagged:", verdict.flagged)
    print("marked for:", list(verdict.users))


def write_for(user: str, registry: Path, model_folder: Path, prompt: str) -> str:
    """Return what a model writes after a prompt, marked for a user."""
    opened = brickscan.open(registry)
    mark, message = opened.mark("first"), opened.messages("first", [user])[user]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(model_folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(model_folder, local_files_only=True, use_safetensors=True)
    asked = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
    # one processor a batch: it is told the message and the length of the prompt of each row
    processor = brickscan.GreenListProcessor(mark, [message], [asked.shape[1]], delta=4.0)
    torch.manual_seed(1)
    done = model.generate(
        asked, do_sample=True, min_new_tokens=NEW_TOKENS, max_new_tokens=NEW_TOKENS, logits_processor=[processor]
    )
    return str(tokenizer.decode(done[0, asked.shape[1] :]))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
