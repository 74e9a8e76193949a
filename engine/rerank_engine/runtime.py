"""Run a model: map the stored machine code and call it. A stored image needs no compiler in the process.

Where machine code is missing it is compiled once and stored; where it may not run at all, NumPy answers.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.errors import CompileError, InputError, ModelFileError
from rerank_engine.image import Image, blake2b
from rerank_engine.interface import difference, interface_of
from rerank_engine.machine import machine_signature
from rerank_engine.session import MachineCode, Out, Session, handed_over
from rerank_engine.values import DTYPES, Value

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from rerank_engine.graph import Graph
    from rerank_engine.model import Model
    from rerank_engine.search.background import BackgroundSearch
    from rerank_engine.threads import Splitter

ENGINE_VERSION = "13"
"""Part of every image's key; raised when generated code or the calling contract changes."""

_DEVICES = ("auto", "cpu")
_MOST_SEARCH_S = 3600
_HEADER_SIZE = 128
"""Of a model file in bytes."""


def load(
    model: str | Path | Model,
    *,
    cache_dir: str | Path | None = None,
    threads: int = 1,
    device: str = "auto",
    search_s: float | None = None,
) -> Engine:
    """Make a model ready to run.

    Parameters
    ----------
    model
        Path of a ``.rrm`` file, or a converted model.
    cache_dir
        Where machine code is kept; by default the user's cache directory.
    threads
        Most threads for one call. More than the process may use at once, by affinity and control group, are not taken;
        long lists are cut where each row depends on its own candidate only. :meth:`Engine.explain` tells.
    device
        ``"auto"`` or ``"cpu"``.
    search_s
        Seconds to search for faster kernels where that was not done before, in a process beside this one while the
        default ones answer; what is found is kept with the machine code. 0: not at all. By default what
        ``RERANK_SEARCH_S`` says, else 0.5. ``rerank tune`` searches for as long as it is told.

    Returns
    -------
    Engine
        Safe to use from many threads at once.

    Raises
    ------
    ModelFileError
        The file is damaged or of another version.
    InputError
        An option is not known.

    Examples
    --------
    >>> engine = load("din.rrm")  # doctest: +SKIP
    >>> scores = engine.run({"dense": features})  # doctest: +SKIP
    """
    if type(threads) is not int or threads < 1:
        raise InputError(f"threads={threads!r}: expected a number of at least 1")
    if device not in _DEVICES:
        raise InputError(f"device {device!r} is not known; known: {', '.join(_DEVICES)}")
    if search_s is None:
        search_s = _default_search_s()
    if type(search_s) not in (int, float) or not 0 <= search_s <= _MOST_SEARCH_S:
        raise InputError(f"search_s={search_s!r}: expected seconds from 0 to {_MOST_SEARCH_S}")
    if isinstance(model, str | os.PathLike):
        path, text = model, os.fspath(model)
        identity = _identity_of_file(text)

        def read() -> Graph:
            from rerank_engine.format.reader import read_model

            return read_model(path)
    else:
        # A stored model is loaded without the code that converts one.
        from rerank_engine.model import Model

        if not isinstance(model, Model):
            raise InputError(f"model: expected the path of a model file or a Model, got {type(model).__name__}")
        graph, identity = model.graph, model.file_identity
        text = ""

        def read() -> Graph:
            return graph

    return Engine(read, identity, cache_dir, text, threads, search_s)


class Engine:
    """A model that is ready to run.

    Attributes
    ----------
    inputs, outputs
        Values that :meth:`run` takes and gives, in order.
    backend
        ``"cpu"`` (machine code) or ``"numpy"``.
    backend_reason
        Why this backend was taken.
    """

    def __init__(
        self,
        read: Callable[[], Graph],
        identity: bytes,
        cache_dir: str | Path | None,
        path: str,
        threads: int,
        search_s: float,
    ) -> None:
        self._identity = identity
        self._search: BackgroundSearch | None = None
        key = image_key(identity)
        self._image_path = image_path(key, cache_dir)
        self._local = threading.local()
        self._code: MachineCode | None = None
        self._graph: Graph | None = None
        self.inputs: list[Value]
        self.outputs: list[Value]
        self.backend = "cpu"
        try:
            self.backend_reason = self._take_code(_images(read, key, self._image_path, identity, path))
            assert self._code is not None, "machine code was taken"
            meta = self._code.meta
            if meta.get("key") == key and "search" not in meta and search_s > 0:
                self._search_beside(read, path, key, search_s)
        except (CompileError, ImportError) as error:
            self.backend, self._code = "numpy", None
            self.backend_reason = f"no machine code: {error}"
            self._graph = read()
            self._interface = interface_of(self._graph)
            self.inputs, self.outputs = list(self._interface.inputs), list(self._interface.outputs)
        self._splitter: Splitter | None = None
        self._threads = (1, "one thread was asked for")
        if threads > 1:
            self._prepare_threads(threads)

    def _take_code(self, images: Iterable[tuple[Image, str]]) -> str:
        """Take the first machine code that gives the sample's numbers, and tell why it is this one.

        Raises
        ------
        CompileError
            There is none.
        """
        rejected = ""
        for image, reason in images:
            try:
                self._code = MachineCode(image)
                self._interface = self._code.interface
                self.inputs, self.outputs = list(self._interface.inputs), list(self._interface.outputs)
                self._local = threading.local()
                self._local.session = Session(self._code)
                wrong = self.self_check()
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                wrong = f"its description does not fit: {error!r}"
            if not wrong:
                return reason + rejected
            rejected += f"; rejected: {reason}, whose self-check failed: {wrong}"
        raise CompileError(f"the self-check failed{rejected}")

    def _search_beside(self, read: Callable[[], Graph], path: str, key: str, search_s: float) -> None:
        from pathlib import Path

        from rerank_engine.search.background import BackgroundSearch

        # The working folder may be another one by the time that these are used.
        image = Path(self._image_path).absolute()
        file = path and str(Path(path).absolute())
        self._search = BackgroundSearch(read, file, image, key, search_s, self._take_found)

    def _take_found(self, image: Image) -> None:
        """Go on with what a search has found. Calls that run now end with the code that they began with."""
        self._code = MachineCode(image)
        self._local = threading.local()

    def wait_for_search(self, timeout_s: float | None = None) -> bool:
        """Wait for the search that was begun when the model was loaded.

        Returns
        -------
        bool
            Whether there is none, or it has ended; :meth:`explain` tells how.

        Examples
        --------
        >>> engine.wait_for_search(timeout_s=60)  # doctest: +SKIP
        True
        """
        return self._search is None or self._search.wait(timeout_s)

    def _search_report(self) -> dict[str, Any]:
        report: dict[str, Any] = {}
        if self._code is not None:
            report = self._code.meta.get("search", {})
        if not report:
            state = "not run: rerank tune MODEL does" if self._search is None else self._search.state
            if self._code is None:
                state = "not run: there is no machine code"
            report = {"is_used": False, "reason": state}
        return report

    def _prepare_threads(self, threads: int) -> None:
        from rerank_engine.threads import Splitter, usable_processors, why_not_split

        usable = usable_processors()
        why = why_not_split(self._interface, self._code.meta["steps"]) if self._code else "there is no machine code"
        if why or usable < 2:
            self._threads = (1, why or "this process may use one processor")
            return
        count = min(threads, usable)
        self._splitter = Splitter(self._run, self._interface, count)
        self._threads = (count, f"{threads} were asked for, {usable} may be used")

    @property
    def model_hash(self) -> str:
        """SHA-256 of the model, in hex."""
        from rerank_engine.format.layout import header_in

        return header_in(self._identity).content_sha256.hex()

    @property
    def cache_path(self) -> Path:
        """Where the machine code is stored."""
        from pathlib import Path

        return Path(self._image_path)

    def self_check(self) -> str:
        """Run the model's stored sample and compare.

        Returns
        -------
        str
            Where the answer differs from the stored one; empty when it does not, or when the model has no sample.

        Examples
        --------
        >>> engine.self_check()  # doctest: +SKIP
        ''
        """
        sample = self._interface.sample
        if sample is None:
            return ""
        found = self._run(sample.inputs, None)
        return difference(sample, found if isinstance(found, dict) else {self.outputs[0].name: found})

    def run(
        self, inputs: Mapping[str, NDArray[Any]], *, history_key: Hashable = None, out: Out = None
    ) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Score candidates.

        A dictionary of contiguous arrays in the declared dtypes goes straight into machine code, which reads the arrays
        where they lie; anything else is converted first.

        Parameters
        ----------
        inputs
            One array for each input; a named dimension may have any length up to its declared maximum, 0
            included. Integer and float dtypes are converted where no value can change its meaning (float64 to
            float32, any integer to int64).
        history_key
            Stands for the content of all inputs that do not depend on the candidates (user, context, history). When a
            thread calls with the same key as in its last call, what the model computes from these inputs alone is not
            computed again. It is on the caller that the same key means the same content. Default: always compute.
        out
            Array that gets the output, of its dtype and shape; by name where the model has several outputs. A call in
            steady state then keeps no memory. Default: new arrays.

        Returns
        -------
        ndarray or dict
            The output, or all of them by name when the model has several: those of ``out``, or new ones.

        Raises
        ------
        InputError
            An input is missing, unknown, of a wrong shape or dtype; an id is outside its table; ``out`` does not fit.

        Examples
        --------
        >>> engine.run({"x": np.zeros((3, 8), np.float32)}).shape  # doctest: +SKIP
        (3,)
        """
        if history_key is not None:
            try:
                hash(history_key)
            except TypeError:
                raise InputError(
                    f"history_key: expected what never changes, as a text, a number or a tuple of them, "
                    f"got {type(history_key).__name__}"
                ) from None
        if self._splitter is not None:
            joined = self._splitter.run(inputs, history_key)
            if out is None:
                return joined
            results = handed_over(joined if isinstance(joined, dict) else {self.outputs[0].name: joined}, out)
            return results if len(results) > 1 else next(iter(results.values()))
        return self._run(inputs, history_key, out)

    def _run(
        self, inputs: Mapping[str, NDArray[Any]], history_key: Hashable, out: Out = None
    ) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Score candidates on this thread."""
        session: Session | None = getattr(self._local, "session", None)
        if session is None and self._code is not None:
            session = self._local.session = Session(self._code)
        if session is not None:
            direct = session.run_directly(inputs, history_key, out)
            if direct is not None:
                return direct
        sizes = self._check(inputs)
        if session is not None:
            results = session.run(inputs, sizes, history_key, out)
        else:
            results = handed_over(self._run_numpy(inputs), out)
        return results if len(results) > 1 else next(iter(results.values()))

    def _run_numpy(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        from rerank_engine.reference import evaluate

        with np.errstate(over="ignore", invalid="ignore"):
            cast = {value.name: np.asarray(inputs[value.name], DTYPES[value.dtype]) for value in self.inputs}
        assert self._graph is not None, "without machine code the model is read"
        results = evaluate(self._graph, cast)
        # A result may be an input or a weight itself, which the caller must not get to write into: it gets a copy.
        return {value.name: np.asarray(results[value.name], DTYPES[value.dtype], order="C") for value in self.outputs}

    def _check(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        if not isinstance(inputs, Mapping):
            raise InputError(f"inputs must be a mapping from input name to array, got {type(inputs).__name__}")
        wanted = self._interface.inputs
        if len(inputs) != len(wanted) or any(value.name not in inputs for value in wanted):
            given = ", ".join(sorted(map(str, inputs))) or "none"
            raise InputError(f"expected inputs {', '.join(map(str, wanted))}; got {given}")
        for value in wanted:
            array = inputs[value.name]
            if not isinstance(array, np.ndarray):
                raise InputError(f"input {value.name!r} must be a NumPy array, got {type(array).__name__}")
            if array.dtype != DTYPES[value.dtype] and not _converts(array.dtype, DTYPES[value.dtype]):
                raise InputError(f"input {value}: dtype {array.dtype} does not convert; give {value.dtype}")
        from rerank_engine.binding import bind_sizes

        sizes = bind_sizes(wanted, inputs, self._interface.maxima)
        for dim, name in self._interface.shrinking:
            if dim.evaluate(sizes) < 0:
                raise InputError(
                    f"the inputs are too short: value {name!r} would have {dim} = {dim.evaluate(sizes)} rows"
                )
        return sizes

    def explain(self) -> dict[str, Any]:
        """Tell what was planned and why: backend, target, block size, memory, steps, the search for kernels.

        Examples
        --------
        >>> engine.explain()["backend"]  # doctest: +SKIP
        'cpu'
        """
        meta = self._code.meta if self._code else {}
        return {
            "model": self._interface.name,
            "model_hash": self.model_hash,
            "backend": self.backend,
            "reason": self.backend_reason,
            "image": self._image_path,
            "threads": self._threads[0],
            "threads_reason": self._threads[1],
            "search": self._search_report(),
            **{key: meta[key] for key in ("target", "block", "arena_bytes", "weight_bytes", "steps") if key in meta},
            "code_bytes": len(self._code.image.code) if self._code else 0,
        }


def _default_search_s() -> float:
    text = os.environ.get("RERANK_SEARCH_S", "0.5")
    try:
        return float(text)
    except ValueError:
        raise InputError(f"RERANK_SEARCH_S={text!r}: expected seconds from 0 to {_MOST_SEARCH_S}") from None


def _identity_of_file(path: str) -> bytes:
    """What stands for a model file: see :func:`rerank_engine.format.layout.file_identity`.

    The header is not checked: machine code that was stored for these very bytes was made from a sound file, and to
    check them without need would take a fifth of the start.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 -- pathlib is slow to import
        # Before opening: a named pipe would wait for its writer.
        if stat.S_ISREG(status.st_mode):
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                return file.read(_HEADER_SIZE) + status.st_size.to_bytes(8, "little")
    except (OSError, ValueError):
        pass
    from rerank_engine.format.content import read_header

    read_header(path)
    raise ModelFileError(f"{path}: changed while it was read")


def image_key(identity: bytes) -> str:
    """Name of the image: everything that can change its answer or its speed."""
    parts = (identity, ENGINE_VERSION, *machine_signature())
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def image_path(key: str, cache_dir: str | Path | None) -> str:
    """Where the image of this key is stored; by default in the user's cache directory."""
    if cache_dir is None:
        from rerank_engine.paths import user_cache_text

        cache_dir = os.path.join(user_cache_text(), "images")  # noqa: PTH118 -- pathlib is slow to import
    return os.path.join(cache_dir, f"{key}.rri")  # noqa: PTH118


def _images(
    read: Callable[[], Graph], key: str, path: str, identity: bytes, model_path: str
) -> Iterator[tuple[Image, str]]:
    """What was compiled on this machine before, what lies ready beside the model, what is compiled now; with why."""
    stored = _stored_image(key, path)
    if isinstance(stored, Image):
        yield stored, "stored machine code"
        stored = "compiled again"
    if model_path:
        yield from _ready_images(identity, model_path)
    yield _new_image(read, key, path, stored)


def _stored_image(key: str, path: str) -> Image | str:
    """What was compiled on this machine before, or why there is nothing sound."""
    try:
        image = Image.read(path)
    except FileNotFoundError:
        return "compiled for this machine"
    except (ModelFileError, OSError, ValueError) as error:
        return f"compiled again: {error}"
    if image.meta.get("key") != key:
        return f"compiled again: image {path} was made for another model or machine"
    return image


def _ready_images(identity: bytes, path: str) -> Iterator[tuple[Image, str]]:
    """Machine code beside the model file that fits model, engine and processor, best first."""
    from rerank_engine.ready import ready_key, ready_path, runnable_targets

    for target in runnable_targets():
        beside = ready_path(path, target)
        try:
            image = Image.read(beside)
        except (ModelFileError, OSError, ValueError):
            continue
        if image.meta.get("ready") == ready_key(identity, target):
            yield image, f"ready machine code: {beside}"


def _new_image(read: Callable[[], Graph], key: str, path: str, why: str) -> tuple[Image, str]:
    """Compile an image and store it."""
    from pathlib import Path

    from rerank_engine.codegen.compile import compile_graph
    from rerank_engine.search.products import is_too_small, nothing_to_search

    graph = read()
    image = compile_graph(graph)
    image.meta["key"] = key
    if is_too_small(graph):
        image.meta["search"] = nothing_to_search()
    try:
        image.write(Path(path))
    except OSError as error:
        why += f"; not stored: {error}"
    return image, why


def _converts(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    """Whether values keep their meaning: any integer to int64, smaller integers to int32, floats to float32."""
    if want.kind == "f":
        return have.kind == "f"
    if want.kind == "i":
        return have.kind in "iu" and np.can_cast(have, want)
    return False


__all__ = ["Engine", "image_key", "load"]
