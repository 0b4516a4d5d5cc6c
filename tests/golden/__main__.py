"""`make golden`: is every output of the golden night what it was? Ends with 1 and names the parts that are not.

Texts of all parts are left in build/golden. Where the run before was equal, its texts are kept in build/golden-before,
and what differs is shown line by line. `make golden ACCEPT=1` records the outputs as they are now.
"""

import difflib
import hashlib
import json
import os
import shutil
import sys
from itertools import islice
from pathlib import Path

from tests.golden.night import golden_folder
from tests.golden.outputs import outputs_of

DIGESTS = Path(__file__).with_name("digests.json")
TEXTS, BEFORE = Path("build/golden"), Path("build/golden-before")


def main() -> int:
    with golden_folder() as folder:
        texts = outputs_of(folder)
    digests = {part: hashlib.sha256(text.encode()).hexdigest() for part, text in sorted(texts.items())}
    _write(texts)
    if os.environ.get("ACCEPT"):
        DIGESTS.write_text(json.dumps(digests, indent=1) + "\n")
    expected = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    differing = sorted(part for part in digests.keys() | expected.keys() if digests.get(part) != expected.get(part))
    if not differing:
        shutil.rmtree(BEFORE, ignore_errors=True)
        shutil.copytree(TEXTS, BEFORE)
    for part in differing:
        print(f"differs: {part}")
        print(*islice(_difference(part, texts.get(part, "")), 40), sep="\n")
    print(f"{len(digests)} parts, {len(differing)} differ from {DIGESTS.name}")
    return 1 if differing else 0


def _write(texts: dict[str, str]) -> None:
    shutil.rmtree(TEXTS, ignore_errors=True)
    for part, text in texts.items():
        (TEXTS / part).parent.mkdir(parents=True, exist_ok=True)
        (TEXTS / part).write_text(text)


def _difference(part: str, text: str) -> list[str]:
    before = (BEFORE / part).read_text() if (BEFORE / part).exists() else ""
    return [line[:300] for line in difflib.unified_diff(before.splitlines(), text.splitlines(), "before", "now", n=0)]


if __name__ == "__main__":
    sys.exit(main())
