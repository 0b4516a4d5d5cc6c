"""Builds a release from what is committed, as `make release` does: wheels, source, bill of materials, digests.

The commit decides every byte: files are those of `git archive`, times are the commit's, tools are those of tools.lock.
So whoever builds the commit again can compare digests, and a wheel that is built from the released source is the
released wheel.
"""

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN = "infra/vllm"
DIGESTS = "SHA256SUMS"
NAMESPACE = "brickscan-release"
"""What the signature is for, as `ssh-keygen` asks: a signature of another use does not verify."""


def git(*arguments: str) -> bytes:
    """Return the output of a command of git in the repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout  # noqa: S607


def refuse_uncommitted() -> None:
    """End with the list of changed and new files, if there are any."""
    if changed := git("status", "--porcelain").decode():
        sys.exit(f"a release is built from what is committed; commit or remove first:\n{changed.rstrip()}")


def run(tool: str, *arguments: str | Path, folder: Path) -> None:
    """Run a tool of this environment in a folder; its output is shown where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", tool, *arguments], cwd=folder, check=False, text=True, capture_output=True
    )
    if done.returncode:
        sys.exit(f"{tool} failed:\n{done.stdout}{done.stderr}")


def extract(archive: bytes, folder: Path) -> Path:
    """Extract a tar file; modes of its files follow from it alone, not from the umask."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def build_wheel(source: Path, out: Path) -> None:
    """Build the wheel of a source tree, in this environment and without a network."""
    run("build", "--no-isolation", "--wheel", "--outdir", out, ".", folder=source)


def build_source(source: Path, out: Path, epoch: int) -> Path:
    """Build the source archive with the commit's time, no owner, and names in order, as setuptools does not."""
    run("build", "--no-isolation", "--sdist", "--outdir", out, ".", folder=source)
    (path,) = out.glob("*.tar.gz")
    plain = io.BytesIO()
    with tarfile.open(path) as built, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as files:
        for member in sorted(built.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() else 0o644
            files.addfile(member, built.extractfile(member) if member.isfile() else None)
    path.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch))
    return path


def check_source(path: Path, released: Path) -> None:
    """End, unless the source archive has every file of the commit, and builds the released wheel, byte for byte."""
    with tempfile.TemporaryDirectory() as name:
        (folder,) = extract(gzip.decompress(path.read_bytes()), Path(name)).iterdir()
        files = git("ls-tree", "-r", "--name-only", "-z", "HEAD").decode().split("\0")
        if missing := [file for file in files if not (folder / file).exists()]:
            sys.exit(f"{path.name} lacks {', '.join(missing)}: list it in MANIFEST.in")
        build_wheel(folder, Path(name))
        (wheel,) = Path(name).glob("*.whl")
        if wheel.read_bytes() != released.read_bytes():
            sys.exit(f"{path.name} does not build the same wheel as {released.name}: its source archive lacks a file")


def write_materials(source: Path, path: Path) -> None:
    """Write the bill of materials in CycloneDX: what the image installs beside the wheel, with the digests of each."""
    project, lock = source / "pyproject.toml", source / "infra" / "requirements.lock"
    options = ("--output-reproducible", "--of", "JSON", "-o", path)
    run("cyclonedx_py", "requirements", "--pyproject", project, *options, lock, folder=source)


def sign(path: Path, key: Path) -> Path:
    """Sign a file with an SSH key, or with the agent's where `key` is a public one; returns the signature's file."""
    done = subprocess.run(["ssh-keygen", "-Y", "sign", "-f", key, "-n", NAMESPACE, path], check=False)  # noqa: S607
    if done.returncode:
        sys.exit(f"{path.name} was not signed with {key}: see above")
    return path.with_name(f"{path.name}.sig")


def build(out: Path) -> list[Path]:
    """Build everything into a folder that is made or empty; returns its files."""
    refuse_uncommitted()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        sys.exit(f"{out} is not empty: give a new folder, or empty it")
    epoch = int(git("log", "-1", "--format=%ct"))
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    os.umask(0o022)  # modes of files that the build makes stand in the wheel
    with tempfile.TemporaryDirectory() as name:
        source = extract(git("archive", "HEAD"), Path(name))
        version = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        archive = build_source(source, out, epoch)
        build_wheel(source, out)
        check_source(archive, next(out.glob("brickscan-*.whl")))
        build_wheel(source / PLUGIN, out)
        write_materials(source, out / f"brickscan-{version}.cdx.json")
    files = sorted(out.iterdir())
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (out / DIGESTS).write_text("".join(sums), encoding="utf-8")
    return [*files, out / DIGESTS]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build a release from what is committed.")
    parser.add_argument("out", type=Path, help="folder for the release, new or empty")
    by = parser.add_mutually_exclusive_group(required=True)
    by.add_argument("--key", type=Path, help=f"SSH key that signs {DIGESTS}; for a public key, the agent signs")
    by.add_argument("--unsigned", action="store_true", help="build without a signature, as a trial")
    given = parser.parse_args()
    if given.key is not None and not given.key.is_file():
        sys.exit(f"--key {given.key}: is not a file; name the SSH key that signs releases")
    built = build(given.out.resolve())
    print(built[-1].read_text(encoding="utf-8"), end="")
    if given.key is not None:
        print(f"signed: {sign(built[-1], given.key).name}")
