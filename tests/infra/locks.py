"""Faults of the locks that the image and `make release` install from."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMAGE = ("cluster", "review", "serve")
LOCKS = {
    "requirements.lock": [
        *PROJECT["dependencies"],
        *(one for name in IMAGE for one in PROJECT["optional-dependencies"][name]),
    ],
    "requirements-gpu.lock": [
        *PROJECT["dependencies"],
        *(one for name in (*IMAGE, "model") for one in PROJECT["optional-dependencies"][name]),
    ],
}
"""Locks of the image, and what each must install."""

ANOTHER = {"triton"}
"""Packages that are locked at another version than they are tested with: torch brings the Triton it is built for."""


def lock_problems(infra: Path) -> Iterator[str]:
    """Files without a digest, versions other than those of constraints.txt, requirements that are not met."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", canonical(infra / "constraints.txt"), re.MULTILINE))
    for name, needed in LOCKS.items():
        locked: dict[str, str] = {}
        for entry in re.findall(r"^(\w.*(?:\n    .*)*)", canonical(infra / name), re.MULTILINE):
            package, version = re.match(r"([^=]+)==([^\s;]+)", entry).groups()
            locked[package] = version
            if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry):
                yield f"{name}: {package} has no digest"
            if package not in ANOTHER and pins.get(package, version) != version:
                yield f"{name}: {package} {version}; constraints.txt has {pins[package]}"
        for requirement in map(Requirement, needed):
            version = locked.get(canonicalize_name(requirement.name))
            if version is None or version not in requirement.specifier:
                yield f"{name}: {requirement} is not met; run `make lock`"


def canonical(path: Path) -> str:
    """A list of requirements, with canonical names at the beginning of its lines."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"^[A-Za-z][\w.-]*", lambda found: canonicalize_name(found[0]), text, flags=re.MULTILINE)
