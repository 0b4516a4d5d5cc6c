"""The documentation is true of the code: the floors, the sizes, the files and names it points to."""

import ast
import builtins
import functools
import importlib
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from textwrap import dedent

import click
import pyarrow.parquet as pq
import pytest

from jobs.cli import brickscan
from schemas.config import COST_OF_LOOKS
from tests.support.floors import FLOORS
from tests.support.measurements import read
from tests.support.syntax_trees import tree_of

ROOT = Path(__file__).parents[1]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PAGES = {path: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}


def test_the_floors_are_those_that_are_checked():
    block = re.search(r"<!-- floors -->\n```\n(.*?)```", ARCHITECTURE, re.DOTALL)
    assert [line.split()[0] for line in block[1].splitlines()] == FLOORS[::-1]


def test_the_sizes_are_those_of_the_code():
    rows = re.findall(r"^\| `(scanner[\w.]+)\.(\w+)` \| ([\d.]+) \|", ARCHITECTURE, re.MULTILINE)
    assert len(rows) >= 10
    for module, name, value in rows:
        assert str(getattr(importlib.import_module(module), name)) == value, name


def test_the_costs_of_looks_are_the_measured_ones():
    rows = read(ROOT / "docs/measurements/cost-of-looks.json").rows
    of_one = (re.fullmatch(r"100,000 users and (\w+).*", str(row[0])) for row in rows)
    measured = {found[1]: float(row[3]) for found, row in zip(of_one, rows, strict=True) if found}
    assert {look: measured[look] for look in COST_OF_LOOKS} == COST_OF_LOOKS


def test_every_module_and_file_that_is_named_is_there():
    for page, text in PAGES.items():
        for path in re.findall(r"`((?:scanner|tests|schemas|jobs)/[\w./*]+)`", text):
            assert list(ROOT.glob(path)), f"{page}: {path}"
        for name in re.findall(r"`(scanner(?:\.\w+)+)`", text):
            package, _, last = name.rpartition(".")
            found = list(ROOT.glob(name.replace(".", "/") + "*"))
            assert found or hasattr(importlib.import_module(package), last), f"{page}: {name}"


def options_of(words: list[str]) -> set[str]:
    """Options of the command that words name, and of the groups around it."""
    command, options = brickscan, {"--help", "--version"}
    for word in words:
        if not isinstance(command, click.Group) or (inner := command.get_command(None, word)) is None:
            break
        command = inner
        options |= {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
    return options


def test_every_option_of_a_command_and_target_of_make_is_there():
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = []
    for page, text in PAGES.items():
        whole = text.replace("\\\n", " ")  # lines that go on
        for command in re.findall(r"(?<![\w-])brickscan ([a-z][a-z-]* [^`\n#|;]*)", whole):
            words = command.split()
            used = {word.partition("=")[0].strip("),.:\"'") for word in words if re.match(r"--[a-z]", word)}
            assert used <= options_of(words), f"{page}: brickscan {command}"
            named += used
        for target in re.findall(r"`make ([a-z][a-z-]*)\b|^make ([a-z][a-z-]*)\b", text, re.MULTILINE):
            assert "".join(target) in targets, f"{page}: make {target}"
    assert len(named) > 200


def anchors(page: str) -> set[str]:
    """Anchors that links into a page can name: its headings, as forges name them, and its `<a id>`."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    headings = (re.sub(r"[^\w\- ]", "", found.lower()) for found in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {found.replace(" ", "-") for found in headings} | set(re.findall(r'<a id="([^"]+)"', text))


def test_every_link_leads_somewhere():
    for page, text in PAGES.items():
        links = re.findall(r"\]\(\s*((?!\w+:)[^)\s]+)\)", text)
        for link in links:
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page}: {link}"
            if anchor and target.name == "measurements.md":
                assert (target.with_suffix("") / f"{anchor}.json").exists(), f"{page}: {link}"
            elif anchor and target.suffix == ".md":  # of a picture it says when the picture is shown
                assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page}: {link}"
    assert sum(text.count("](") for text in PAGES.values()) > 50


def test_the_marked_text_of_the_detectors_guide_is_marked():
    page = PAGES[ROOT / "docs/guides/answer-others.md"]
    file, document = re.search(r'demo/documents/([\w.-]+)".*"(doc-\d+)"', page).groups()
    truth = pq.read_table(ROOT / "jobs/demo/truth.parquet", columns=["doc_id", "kind"]).to_pylist()
    assert {"doc_id": document, "kind": "marked"} in truth
    assert document in pq.read_table(ROOT / "jobs/demo" / file, columns=["doc_id"])["doc_id"].to_pylist()


TEXTS = [
    path
    for folder in ("docs", "jobs", "scanner", "infra")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".md", ".py", ".ipynb", ".j2", ".toml", ".yaml", ".sh", ".ts") or path.name == "Dockerfile"
]


def installs(text: str) -> list[str]:
    """What commands of pip in a text install: each requirement as it is written, without quotes."""
    commands = re.findall(r"pip3? install ([^`\n#|;&]*)", text)
    return [word.strip("\"'.,:)\\") for command in commands for word in re.split(r"[\s]+", command)]


def test_no_line_asks_an_index_for_our_name():
    """`pip install 'brickscan[serve]'` installs whatever somebody puts into an index by that name."""
    asked = [
        word for path in [ROOT / "README.md", ROOT / "Makefile", *TEXTS] for word in installs(path.read_text("utf-8"))
    ]
    named = [word for word in asked if re.match(r"brickscan|\.\[|\.$", word)]
    assert len(named) > 12
    assert [word for word in named if not re.match(r"brickscan[\w.-]*\.whl|\.", word)] == []
    assert [str(path) for path in TEXTS if re.search(r"\bbrickscan\[", path.read_text("utf-8"))] == []


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDS = {"serve": "serve", "review": "review", "mark": "model", "evaluate": "model"}
NEEDS |= {"calibrate": "audit"}
"""Commands, and the extra without which each ends at once."""


distributions_of_modules = functools.cache(packages_distributions)


def requirements(extras: set[str]) -> set[str]:
    """Names of what an installation with extras has."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    inner = {name for line in lines for one in re.findall(r"^brickscan\[([\w,]+)\]", line) for name in one.split(",")}
    found = {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines} | {"brickscan"}
    return found | (requirements(inner - extras) if inner - extras else set())


def extras_of(text: str) -> set[str]:
    """Extras that a page tells to install, by a command or by name; `make demo` installs `serve`."""
    named = [name for word in installs(text) for name in re.findall(r"\[([\w,]+)\]$", word)]
    told = [*named, *re.findall(r"extras? `(\w+)`", text), *re.findall(r"extra `\w+` and `(\w+)`", text)]
    known = {name for one in told for name in one.split(",")} & set(EXTRAS)
    return known | ({"serve"} if "make demo" in text else set()) | ({"model"} if "make model" in text else set())


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.stem)
def test_blocks_of_a_page_run_in_an_install_as_it_says(page):
    """The second block of the page on results needed DuckDB, which no extra had; another one imported nothing."""
    text = PAGES[page]
    has, of_module = requirements(extras_of(text)), distributions_of_modules()
    sources = [dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)]
    sources += re.findall(r"^ *python -c '([^'\n]*)'", text, re.MULTILINE)
    for source in sources:
        tree, bound = ast.parse(source), set(dir(builtins))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                bound |= {(name.asname or name.name).partition(".")[0] for name in node.names}
                top = module.partition(".")[0]
                ours = {one.lower().replace("_", "-") for one in of_module.get(top, [top])}
                assert top in sys.stdlib_module_names or ours & has, f"{page}: {top} is in no extra that it names"
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        assert read <= bound, f"{page}: {read - bound} is nowhere made"
    if "reference" in page.parts:
        return
    for block in re.findall(r"^ *```(?:sh|bash)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            for command, extra in NEEDS.items():
                name, _, option = command.partition(" ")
                if re.match(rf" *(\.venv/bin/)?brickscan {name}\b", line) and option in line:
                    assert extra in extras_of(text), f"{page}: {command} needs the extra {extra}"


NO_TERMS = {"best", "brickscan", "error", "face", "fast", "hugging", "list", "local", "log", "named", "names", "opened"}
NO_TERMS |= {"allocation", "completion", "config", "model", "part", "refused", "result", "sampling", "table", "tables"}
NO_TERMS |= {"text", "verification", "verified", "wanted"}
"""Words of public classes that are no nouns of the field: names of programs, plain English, and what was done."""


def test_the_nouns_of_public_classes_stand_in_the_glossary():
    names = set()
    for path in [*ROOT.glob("scanner/*/__init__.py"), ROOT / "scanner/api/brickscan/__init__.py"]:
        for node in tree_of(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names |= {name for name in ast.literal_eval(node.value) if re.match("[A-Z][a-z]", name)}
    assert len(names) > 30
    terms = " ".join(re.findall(r"^\| ([^|]+) \|", PAGES[ROOT / "docs/glossary.md"], re.MULTILINE)).lower()
    words = {word.rstrip("s") for word in re.findall("[a-z]+", terms)}
    nouns = {word.lower() for name in names for word in re.findall("[A-Z][a-z]+", name)} - NO_TERMS
    assert {noun for noun in nouns if noun.rstrip("s") not in words} == set()
