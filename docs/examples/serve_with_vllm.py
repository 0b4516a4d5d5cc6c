"""A gateway before a vLLM server that marks, a request through it, and the check that names the user.

    python docs/examples/serve_with_vllm.py --server http://127.0.0.1:8000 --registry registry --key summer-2026

docs/guides/serve-with-vllm.md says how to start the server. The gateway needs Python alone: knowing who asks, it puts
their message into each request, signs it if the server wants that, and drops what a client says about it.
"""

import argparse
import hashlib
import hmac
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PATHS = ("/v1/chat/completions", "/v1/completions")
"""What is passed on; everything else that vLLM answers is not for users."""


class Gateway(ThreadingHTTPServer):
    """Passes requests on to a server, each for the user whose API key it carries.

    Args:
        server: URL of the vLLM server.
        key_id: of the key that the server marks with.
        messages: of each API key's user, under that key.
        secret: what messages are signed with; None: the server takes them unsigned.
        port: to listen on; 0: any that is free.
    """

    def __init__(
        self, server: str, key_id: str, messages: Mapping[str, int], secret: bytes | None = None, port: int = 0
    ) -> None:
        self.server, self.key_id, self.messages, self.secret = server, key_id, messages, secret
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def marked_for(self, message: int) -> dict[str, int | str]:
        """Return what goes into `vllm_xargs`: the message, and for a minute the proof that it comes from here."""
        if self.secret is None:
            return {"brickscan_message": message}
        expires = int(time.time()) + 60
        said = f"brickscan-token-v1|{self.key_id}|{message}|{expires}".encode()
        mac = hmac.new(self.secret, said, hashlib.sha256).hexdigest()
        return {"brickscan_message": message, "brickscan_token": f"{expires}.{mac}"}


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        """Pass a request on, and its answer back as it comes."""
        message = self.server.messages.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
        if message is None or self.path not in PATHS:
            self.send_error(401 if message is None else 404)
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        theirs = {name: value for name, value in (body.get("vllm_xargs") or {}).items() if "brickscan" not in name}
        body["vllm_xargs"] = theirs | self.server.marked_for(message)
        request = urllib.request.Request(  # noqa: S310 - our own server
            self.server.server + self.path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            answer = urllib.request.urlopen(request)  # noqa: S310
        except urllib.error.HTTPError as error:
            answer = error
        # who hangs up has the server stop as well: with the answer its request ends
        with answer, suppress(ConnectionError):
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.end_headers()
            while piece := answer.read1():
                self.wfile.write(piece)

    def log_message(self, *_: object) -> None:
        """Nothing: who asked for what is nobody's business here."""


def ask(url: str, api_key: str, prompt: str, tokens: int = 300) -> str:
    """Return the answer to a prompt, as a client of OpenAI's interface asks for it."""
    body = {"model": "served", "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return str(json.load(answer)["choices"][0]["message"]["content"])


def main() -> None:
    """Ask for alice, and have the answer checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("server", "registry", "key"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--user", default="alice")
    parser.add_argument("--secret-file", type=Path, help="a file that holds the gateway's, as hexadecimal digits")
    given = parser.parse_args()
    brickscan = [sys.executable, "-m", "jobs.cli"]
    shown = [*brickscan, "users", "show", given.user, "--registry", given.registry]
    lines = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.splitlines()
    held = [line.split() for line in lines if line.split()[:2] == [given.user, given.key] and line.endswith("-")]
    message = int(held[0][2])
    secret = bytes.fromhex(given.secret_file.read_text()) if given.secret_file else None
    with Gateway(given.server, given.key, {"the-api-key-of-" + given.user: message}, secret) as gateway:
        threading.Thread(target=gateway.serve_forever, daemon=True).start()
        text = ask(gateway.url, "the-api-key-of-" + given.user, "Write a story about the keeper of a lighthouse.")
        gateway.shutdown()
    print(text, end="\n\n", flush=True)
    check = [*brickscan, "check", "--registry", given.registry, "--key", given.key]
    raise SystemExit(subprocess.run(check, input=text, text=True, check=False).returncode)


if __name__ == "__main__":
    main()
