"""A model that a user's Python file makes, for the command line."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rerank_engine.errors import ConversionError
from rerank_engine.importers.torch_source import import_torch, own_examples

__all__ = ["load_factory"]


def load_factory(address: str) -> tuple[Any, Any]:
    """Import a Python file by itself and call a function of it that makes a model.

    The file runs with its own folder on the import path, and leaves no compiled files behind.

    Parameters
    ----------
    address
        ``path/model.py:factory``. The function takes nothing and returns a pair of a module and its example inputs,
        or a module that has an attribute or method ``example_inputs``.

    Returns
    -------
    module, example_inputs
        For :func:`torch_to_onnx`.

    Raises
    ------
    ConversionError
        No such file or function, it fails, or it returns something else.
    MissingExtraError
        PyTorch is not installed.

    Examples
    --------
    >>> load_factory("model.py")
    Traceback (most recent call last):
    rerank_engine.errors.ConversionError: expected path/model.py:factory, got 'model.py'
    """
    place, colon, name = address.rpartition(":")
    if not colon or not name.isidentifier():
        raise ConversionError(f"expected path/model.py:factory, got {address!r}")
    path = Path(place)
    if not path.is_file():
        raise ConversionError(f"no such file: {path}")
    torch = import_torch()
    with _import_folder(path.parent):
        source = importlib.util.spec_from_file_location(f"_rerank_factory_{path.stem}", path)
        if source is None or source.loader is None:
            raise ConversionError(f"{path} is no Python file")
        file = importlib.util.module_from_spec(source)
        sys.modules[source.name] = file  # Data classes and pickles look their module up there.
        try:
            source.loader.exec_module(file)
        except Exception as error:
            del sys.modules[source.name]
            raise ConversionError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
        factory = getattr(file, name, None)
        if not callable(factory):
            functions = sorted(key for key, value in vars(file).items() if inspect.isfunction(value))
            raise ConversionError(f"{path} has no function {name!r}; functions: {', '.join(functions) or 'none'}")
        try:
            made = factory()
        except Exception as error:
            raise ConversionError(f"{address} fails: {type(error).__name__}: {error}") from error
    kinds = (torch.nn.Module, torch.export.ExportedProgram)
    if isinstance(made, kinds):
        return made, own_examples(made)
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], kinds):
        return made
    raise ConversionError(
        f"{address} returns {type(made).__name__}; expected a module with example_inputs, or the pair of both"
    )


@contextlib.contextmanager
def _import_folder(folder: Path) -> Iterator[None]:
    writes = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))
        sys.dont_write_bytecode = writes
