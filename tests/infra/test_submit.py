"""submit.sh as the CronJob runs it: real sh and sed, and a kubectl that answers from a list."""

import os
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

K8S = Path(__file__).parents[2] / "infra" / "k8s"

KUBECTL = """\
#!/bin/sh
# create: keeps what it is given; get: gives the next answer
echo "$@" >> "$SAID/calls"
case "$1" in
    create)
        n=$(($(ls "$SAID" | grep -c made) + 1))
        cat > "$SAID/made-$n.yaml"
        echo "rayjob.ray.io/night-$n" ;;
    get)
        case "$*" in
            *jobDeploymentStatus*) list=states ;;
            *) list=messages ;;
        esac
        head -n 1 "$SAID/$list"
        sed -i 1d "$SAID/$list" ;;
esac
"""

FAILED = "Job entrypoint command failed with exit code {}, last available logs (truncated to 20,000 chars):"


@pytest.mark.parametrize(
    ("states", "messages", "code", "attempts"),
    [
        (["", "Initializing", "Running", "Complete"], [], 0, 1),
        (["Running", "Failed", "Running", "Complete"], [FAILED.format(1)], 0, 2),
        (["Failed", "Complete"], ["head pod was lost"], 0, 2),
        (["Failed"] * 3, [FAILED.format(1), FAILED.format(137), FAILED.format(143)], 1, 3),
        (["Failed"], [FAILED.format(2)], 1, 1),
        (["Failed"], [FAILED.format(3)], 1, 1),
        (["Failed"], [FAILED.format(5)], 1, 1),
        (["Failed"], ["Job entrypoint command failed with exit code 4. No logs available."], 1, 1),
    ],
)
def test_a_night_is_tried_again_only_where_that_can_help(tmp_path, states, messages, code, attempts):
    tools, said = tmp_path / "tools", tmp_path / "said"
    tools.mkdir()
    said.mkdir()
    (tools / "kubectl").write_text(KUBECTL)
    (tools / "kubectl").chmod(0o755)
    (said / "states").write_text("".join(f"{state}\n" for state in states))
    (said / "messages").write_text("".join(f"{message}\n" for message in messages))
    done = subprocess.run(
        ["sh", K8S / "submit.sh"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={
            "PATH": f"{tools}:{os.environ['PATH']}",
            "SAID": str(said),
            "TEMPLATE": str(K8S / "rayjob.yaml"),
            "WAIT": "0.01",
        },
    )
    assert done.returncode == code, done.stderr
    assert all(message in done.stdout for message in messages)
    made = sorted(said.glob("made-*"))
    assert len(made) == attempts
    nights = {f"{datetime.now(UTC) - timedelta(days=1, minutes=minutes):%Y-%m-%d}" for minutes in (0, 2)}
    for path in made:
        job = yaml.safe_load(path.read_text())
        assert "DATE" not in str(job)
        night = re.search(r"--date (\S+)$", job["spec"]["entrypoint"])
        assert night is not None
        assert night[1] in nights
        assert job["metadata"]["generateName"] == f"brickscan-{night[1]}-"
