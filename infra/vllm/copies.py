"""The files of brickscan that the wheel carries, with changed imports: a server has no brickscan installed."""

import re
from pathlib import Path

COPIED = (
    "schemas/key_record.py",
    "schemas/registry.py",
    "schemas/versions.py",
    "schemas/words.py",
    "scanner/errors.py",
    "scanner/look_alikes.py",
    "scanner/printable.py",
    "scanner/gpu/vectors.py",
    "scanner/gpu/kernels.py",
    "scanner/registry/leases.py",
    "scanner/registry/secrets.py",
    "scanner/registry/shown_seeds.py",
    "scanner/storage/canonical_json.py",
    "scanner/storage/locations.py",
    "scanner/storage/toml.py",
    "scanner/watermark/native/secret.py",
)

INSIDE = "brickscan_vllm.copied"
_IMPORT = re.compile(r"^(\s*from )((?:scanner|schemas)[.\w]*)( import )", re.MULTILINE)


def moved(text: str) -> str:
    """Return the text of a module whose imports of brickscan find the copies."""
    return _IMPORT.sub(rf"\g<1>{INSIDE}.\g<2>\g<3>", text)


def write_copies(repository: Path, built: Path) -> None:
    """Copy into the built package, and change the imports of its own modules."""
    package = built / "brickscan_vllm"
    for path in package.glob("*.py"):
        path.write_text(moved(path.read_text(encoding="utf-8")), encoding="utf-8")
    for name in COPIED:
        copy = package / "copied" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        for folder in [copy.parent, *copy.parent.parents]:
            if folder == package:
                break
            (folder / "__init__.py").touch()
        copy.write_text(moved((repository / name).read_text(encoding="utf-8")), encoding="utf-8")
