"""PyTorch modules to ONNX, compared with the module itself before anyone relies on them.

Of PyTorch's two exporters the one built on ``torch.export`` is used for modules: it writes far fewer shape
operators, and it stops where a value decides the control flow, which the older one silently fixes. It too has ways
to be wrong without a word: a dimension that the module cannot vary becomes a constant, and a branch on the length is
taken as traced. So the result is checked: its inputs must vary, and its numbers must be the module's at several
list lengths. ``torch.jit`` modules can only go through the older exporter; the same checks hold.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError, MissingExtraError
from rerank_engine.importers.agreement import Sample, check_agreement, count_text
from rerank_engine.importers.torch_bags import plain_bags

if TYPE_CHECKING:
    import onnx
    import torch

__all__ = ["import_torch", "own_examples", "torch_to_onnx"]

_TRACED_LENGTH = 5
_CHECKED_LENGTHS = (1, 2, 7, 33)
"""One, the least that the exporter takes as varying, and lengths on both sides of the traced one."""

_NOISY_LOGGERS = ("torch.onnx", "torch.export", "torch._dynamo", "torch.fx", "onnxscript", "onnx_ir")

Draw = Callable[[int], "dict[str, torch.Tensor]"]
"""Inputs by name for a number of candidates."""


def torch_to_onnx(
    module: Any,
    example_inputs: Any = None,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    shared: Collection[str] = (),
    candidates: str = "N",
    opset: int = 18,
) -> onnx.ModelProto:
    """Export a module with a varying number of candidates.

    Parameters
    ----------
    module
        A ``torch.nn.Module``, a scripted or traced module, or a ``torch.export.ExportedProgram``. It is exported in
        evaluation mode and left in the mode that it came in.
    example_inputs
        Tensors or arrays: one, a sequence, or a mapping by name of the parameter; or a function that takes a number
        of candidates and returns one of these. By default the attribute or method ``example_inputs`` of the module.
        Ids must be valid ones, since the module is run on them.
    input_names
        Names of the inputs; by default those of the parameters of ``forward``.
    output_names
        Names of the outputs; by default the keys of a returned mapping, ``score`` for one tensor, and
        ``output_0``, … for several.
    shared
        Names of inputs whose first dimension does not count candidates, such as a history. Not needed with a
        function as ``example_inputs``, since two lengths show which dimensions vary.
    candidates
        Name of the dimension that counts candidates.
    opset
        Version of ONNX's operators.

    Returns
    -------
    onnx.ModelProto
        Agrees with the module at 1, 2, 7 and 33 candidates.

    Raises
    ------
    ConversionError
        The module cannot be exported, its length cannot vary, or the export computes something else.
    MissingExtraError
        PyTorch or its exporter is not installed.

    Examples
    --------
    >>> import torch
    >>> linear = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0))
    >>> model = torch_to_onnx(linear, torch.zeros(4, 3), input_names=["dense"])  # doctest: +SKIP
    """
    torch = import_torch()
    if not candidates.isidentifier():
        raise ConversionError(f"the candidate dimension cannot be called {candidates!r}: use letters and digits")
    is_program = isinstance(module, torch.export.ExportedProgram)
    if not is_program and not isinstance(module, torch.nn.Module):
        raise ConversionError(
            f"expected a torch module, a scripted module or an exported program, got {type(module).__name__}"
        )
    call = module.module() if is_program else module
    examples = own_examples(module) if example_inputs is None else example_inputs
    with _quiet(), _evaluation(call), torch.no_grad():
        names, draw = _normalise(torch, call, examples, input_names)
        axes = None if is_program else _candidate_axes(names, draw, examples, shared)
        draw = draw if callable(examples) else _rows(torch, draw, axes or {})
        outputs = _name_outputs(torch, call(*draw(_TRACED_LENGTH).values()), output_names)
        try:
            model = _export(torch, module, draw(_TRACED_LENGTH), axes, list(outputs), candidates, opset)
        except ConversionError:
            raise
        except Exception as error:
            raise ConversionError(f"PyTorch cannot export the module: {_reason(error)}") from error
        if is_program:
            axes = _rename_symbol(model, candidates)
            draw = draw if callable(examples) else _rows(torch, draw, axes)
        _check_dimensions(model, axes or {}, candidates)
        _strip_notes(model)
        samples = [_sample(torch, call, draw, count, list(outputs)) for count in _CHECKED_LENGTHS]
    check_agreement(model, samples, "the module")
    return model


def import_torch() -> Any:
    """Import PyTorch and what its exporter needs.

    Raises
    ------
    MissingExtraError
        One of them is not installed.
    """
    try:
        import onnxscript  # noqa: F401  (the exporter needs it and says so less clearly)
        import torch
    except ImportError as error:
        raise MissingExtraError("exporting PyTorch modules", "torch") from error
    return torch


# --- inputs and outputs -----------------------------------------------------------------------------------


def own_examples(module: Any) -> Any:
    """Inputs that a module or an exported program brings along."""
    import torch

    is_program = isinstance(module, torch.export.ExportedProgram)
    found = getattr(module, "example_inputs", None)
    if is_program and found is not None:
        return found[0]
    if found is None:
        raise ConversionError(
            f"{type(module).__name__} has no example_inputs: give tensors of one list, or a function of its length"
        )
    if callable(found) and not inspect.signature(found).parameters:
        return found()
    return found


def _parameters(call: Any) -> list[str]:
    """Names of what ``forward`` takes."""
    schema = getattr(call.forward, "schema", None)
    if schema is not None:
        return [argument.name for argument in schema.arguments if argument.name != "self"]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [entry.name for entry in inspect.signature(call.forward).parameters.values() if entry.kind in kinds]


def _normalise(torch: Any, call: Any, examples: Any, input_names: Sequence[str] | None) -> tuple[list[str], Draw]:
    """Names of the inputs, and a function from the number of candidates to tensors by name, in order."""
    parameters = _parameters(call)

    def ordered(made: Any) -> list[tuple[str, Any]]:
        if isinstance(made, Mapping):
            unknown = set(made) - set(parameters)
            if unknown:
                raise ConversionError(
                    f"forward takes no {min(map(str, unknown))!r}; it takes {', '.join(parameters) or 'nothing'}"
                )
            entries = [(name, made[name]) for name in parameters if name in made]
            if [name for name, _ in entries] != parameters[: len(entries)]:
                raise ConversionError("example_inputs leave out a parameter before one that they have")
            return entries
        values = list(made) if isinstance(made, list | tuple) else [made]
        more = (f"input_{place}" for place in range(len(parameters), len(values)))
        names = [*parameters[: len(values)], *more]
        return list(zip(names, values, strict=True))

    def draw(count: int) -> dict[str, torch.Tensor]:
        entries = ordered(examples(count) if callable(examples) else examples)
        names = list(input_names) if input_names is not None else [name for name, _ in entries]
        if len(names) != len(entries) or len(set(names)) != len(names):
            raise ConversionError(f"{len(entries)} inputs cannot be called {names}")
        return {name: _tensor(torch, name, value) for name, (_, value) in zip(names, entries, strict=True)}

    first = draw(_TRACED_LENGTH)
    if not first:
        raise ConversionError("the module has no inputs")
    return list(first), draw


def _tensor(torch: Any, name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    raise ConversionError(f"input {name!r} is a {type(value).__name__}; expected a tensor or an array")


def _candidate_axes(names: Sequence[str], draw: Draw, examples: Any, shared: Collection[str]) -> dict[str, int]:
    """Axis of each input that counts candidates."""
    unknown = set(shared) - set(names)
    if unknown:
        raise ConversionError(f"no input is called {min(unknown)!r}; inputs: {', '.join(names)}")
    axes: dict[str, int] = {}
    if callable(examples):
        lengths = (_TRACED_LENGTH, _TRACED_LENGTH + 3)
        small, large = (draw(length) for length in lengths)
        for name in names:
            pairs = list(zip(small[name].shape, large[name].shape, strict=True))
            varying = [axis for axis, (before, after) in enumerate(pairs) if before != after]
            if not varying:
                continue
            if len(varying) > 1 or tuple(pairs[varying[0]]) != lengths:
                raise ConversionError(
                    f"input {name!r} has the shape {[b for b, _ in pairs]} for {lengths[0]} candidates and"
                    f" {[a for _, a in pairs]} for {lengths[1]}; one dimension may count candidates, the rest is fixed"
                )
            axes[name] = varying[0]
    else:
        sizes = {name: tuple(tensor.shape) for name, tensor in draw(_TRACED_LENGTH).items() if name not in shared}
        if any(not shape or shape[0] == 0 for shape in sizes.values()) or len({s[0] for s in sizes.values()}) > 1:
            listed = ", ".join(f"{name} {list(shape)}" for name, shape in sizes.items())
            raise ConversionError(
                f"the first dimensions of the inputs are not one number of candidates: {listed};"
                " name the inputs that do not count candidates: shared=…"
            )
        axes = dict.fromkeys(sizes, 0)
    if not axes:
        raise ConversionError("no input counts candidates: at least one first dimension must be their number")
    return axes


def _rows(torch: Any, draw: Draw, axes: Mapping[str, int]) -> Draw:
    """Lists of any length from the rows of one example."""
    example = draw(_TRACED_LENGTH)

    def of_length(count: int) -> dict[str, torch.Tensor]:
        def cut(name: str, tensor: Any) -> Any:
            if name not in axes:
                return tensor
            return tensor.index_select(axes[name], torch.arange(count) % tensor.shape[axes[name]])

        return {name: cut(name, tensor) for name, tensor in example.items()}

    return of_length


def _name_outputs(torch: Any, made: Any, output_names: Sequence[str] | None) -> dict[str, Any]:
    """Name what a module returns."""
    if isinstance(made, Mapping):
        found = {str(name): value for name, value in made.items()}
    elif isinstance(made, list | tuple):
        found = {f"output_{place}": value for place, value in enumerate(made)}
    else:
        found = {"score": made}
    if not found or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ConversionError("the module must return a tensor, or a sequence or mapping of tensors")
    names = list(output_names) if output_names is not None else list(found)
    if len(names) != len(found) or len(set(names)) != len(names):
        raise ConversionError(f"{len(found)} outputs cannot be called {names}")
    return dict(zip(names, found.values(), strict=True))


def _sample(torch: Any, call: Any, draw: Draw, count: int, outputs: Sequence[str]) -> Sample:
    """Run the module on a list of a length."""
    inputs = draw(count)
    try:
        made = call(*(tensor.clone() for tensor in inputs.values()))
    except Exception as error:
        raise ConversionError(f"the module itself fails for {count_text(count)}: {_reason(error)}") from error
    expected = _name_outputs(torch, made, outputs)
    return Sample(count, {name: _array(tensor) for name, tensor in inputs.items()}, _arrays(expected))


def _arrays(tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    return {name: _array(tensor) for name, tensor in tensors.items()}


def _array(tensor: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = tensor.detach().cpu().numpy()
    except TypeError as error:
        raise ConversionError(f"tensors of type {tensor.dtype} are not supported; use float32") from error
    return array


# --- the export ---------------------------------------------------------------------------------------------


def _export(
    torch: Any,
    module: Any,
    inputs: Mapping[str, Any],
    axes: Mapping[str, int] | None,
    outputs: Sequence[str],
    candidates: str,
    opset: int,
) -> onnx.ModelProto:
    import onnx

    names, tensors = list(inputs), tuple(inputs.values())
    common = {"input_names": names, "output_names": list(outputs), "opset_version": opset}
    if isinstance(module, torch.jit.ScriptModule):
        varying = {name: {axis: candidates} for name, axis in (axes or {}).items()}
        file = io.BytesIO()
        torch.onnx.export(module, tensors, file, dynamo=False, dynamic_axes=varying, **common)
        return onnx.load_from_string(file.getvalue())
    if axes is None:
        program = torch.onnx.export(module, (), dynamo=True, verbose=False, **common)
    else:
        # The exporter treats lengths of 0 and 1 as their own cases; that it is right there too is checked later.
        size = torch.export.Dim(candidates, min=2)
        shapes = tuple({axes[name]: size} if name in axes else None for name in names)
        with plain_bags(module):
            program = torch.onnx.export(module, tensors, dynamo=True, verbose=False, dynamic_shapes=shapes, **common)
    return program.model_proto


def _rename_symbol(model: onnx.ModelProto, candidates: str) -> dict[str, int]:
    """Call the one varying dimension of an exported program by our name, and say where it is."""
    found = [
        (entry.name, axis, dim.dim_param)
        for entry in model.graph.input
        for axis, dim in enumerate(entry.type.tensor_type.shape.dim)
        if dim.HasField("dim_param")
    ]
    symbols = {symbol for _, _, symbol in found}
    if len(symbols) != 1:
        raise ConversionError(
            f"the exported program has {len(symbols)} varying dimensions; export it again with one,"
            " which counts candidates: dynamic_shapes={…: {0: torch.export.Dim(…)}}"
        )
    symbol = re.compile(rf"\b{re.escape(symbols.pop())}\b")
    for entry in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in entry.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_param = symbol.sub(candidates, dim.dim_param)
    return {name: axis for name, axis, _ in found}


def _check_dimensions(model: onnx.ModelProto, axes: Mapping[str, int], candidates: str) -> None:
    """Check that each input varies where it should: the exporter fixes what it cannot vary and does not say so."""
    for entry in model.graph.input:
        dims = entry.type.tensor_type.shape.dim
        if entry.name in axes and dims[axes[entry.name]].dim_param != candidates:
            raise ConversionError(
                f"the module only works for {dims[axes[entry.name]].dim_value} candidates: dimension"
                f" {axes[entry.name]} of input {entry.name!r} is fixed by its code, such as a reshape to that length"
            )


def _strip_notes(model: onnx.ModelProto) -> None:
    """Drop stack traces and other notes of the exporter, which hold paths of the machine that exported."""
    graph = model.graph
    entries = (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer)
    for entry in (*entries, *(part for function in model.functions for part in (function, *function.node))):
        entry.ClearField("metadata_props")
        entry.ClearField("doc_string")


@contextlib.contextmanager
def _evaluation(module: Any) -> Iterator[None]:
    """Switch off dropout and the like for a while."""
    if not isinstance(getattr(module, "training", None), bool) or type(module).__name__ == "GraphModule":
        yield
        return
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress, warnings about its own code, and logs to itself."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    void = io.StringIO()
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with contextlib.redirect_stdout(void), contextlib.redirect_stderr(void), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """Give the innermost message, on one line, without colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = re.sub(r"\x1b\[[0-9;]*m", "", f"{type(error).__name__}: {error}")
    return " ".join(text.split())[:500]
