"""Builds the wheel with the files of brickscan that it needs, copied from the one source of this repository."""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildWithCopies(build_py):
    """Puts the copies into the package, and has the package's own modules import them there."""

    def run(self) -> None:
        """Build as setuptools does, then copy."""
        super().run()
        copies = runpy.run_path(str(HERE / "copies.py"))
        copies["write_copies"](HERE.parents[1], Path(self.build_lib))


setup(cmdclass={"build_py": BuildWithCopies})
