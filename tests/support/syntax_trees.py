"""Syntax trees of our own files, each parsed once in a process: many tests read those of the whole product."""

import ast
import functools
import gc
from pathlib import Path


@functools.cache
def tree_of(file: Path) -> ast.Module:
    """The syntax tree of a file, which nobody may change.

    No garbage is looked for meanwhile, nor in the tree ever after, which takes four times as long as to parse it.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


@functools.cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree, as `ast.walk` gives them."""
    return tuple(ast.walk(tree_of(file)))
