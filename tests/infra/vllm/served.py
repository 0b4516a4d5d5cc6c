"""A real vLLM server in its own environment with the plugin installed, and requests to it."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("VLLM_VENV", ROOT / ".venv-vllm")) / "bin" / "python"
MODEL = ROOT / ".model" / "smollm2-135m-instruct"
OPTIONS = (
    "--served-model-name served --dtype float32 --enforce-eager --max-model-len 1024 --max-num-seqs 8 --host 127.0.0.1"
)
STARTED_WITHIN = 300.0


class Server:
    """A running server, by its address and its log."""

    def __init__(self, port: int, log: Path) -> None:
        self.url, self.log = f"http://127.0.0.1:{port}", log

    def ask(self, path: str, body: Mapping[str, Any], url: str | None = None, api_key: str = "") -> dict[str, Any]:
        """The answer to a request, of the server or of a gateway before it; an error has `error`."""
        try:
            with self.open(path, body, url, api_key) as answer:
                return json.load(answer)  # type: ignore[no-any-return]
        except urllib.error.HTTPError as error:
            return {"status": error.code, **json.load(error)}

    def open(self, path: str, body: Mapping[str, Any], url: str | None = None, api_key: str = "") -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"}
        data = json.dumps({"model": "served", **body}).encode()
        return urllib.request.urlopen(
            urllib.request.Request(f"{url or self.url}/v1/{path}", data, headers), timeout=600
        )

    def counted(self, metric: str) -> dict[str, float]:
        """Values of a counter in /metrics, by its one label."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        return {
            label: float(value) for label, value in re.findall(rf'^{metric}_total{{\w+="(\w+)"}} (\S+)', text, re.M)
        }


def launch(
    folder: Path, port: int, settings: Mapping[str, str], options: str, python: Path = PYTHON
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a server whose log and counts lie in a new folder."""
    folder.mkdir()
    (folder / "counts").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PROMETHEUS_MULTIPROC_DIR": str(folder / "counts"),
        **settings,
    }
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *OPTIONS.split(), *options.split()],
            cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    return process, folder / "log"


@contextmanager
def serving(folder: Path, settings: Mapping[str, str], options: str = "", python: Path = PYTHON) -> Iterator[Server]:
    """A server that runs until the block ends."""
    port = free_port()
    process, log = launch(folder, port, settings, options, python)
    try:
        deadline = time.monotonic() + STARTED_WITHIN
        while not answers(port):
            assert process.poll() is None, log.read_text(errors="replace")[-4000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-4000:]
            time.sleep(0.5)
        yield Server(port, log)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def why_not(folder: Path, settings: Mapping[str, str], options: str = "") -> str:
    """The log of a server that ends by itself."""
    process, log = launch(folder, free_port(), settings, options)
    try:
        assert process.wait(STARTED_WITHIN) != 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return log.read_text(errors="replace")


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
