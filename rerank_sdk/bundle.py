"""A bundle: model, feature spec and manifest in one file, bound to each other by hash.

The file is a ZIP archive with fixed times and order, so the same parts give the same bytes:

    manifest.json   format version, name, hashes of the other parts, measured facts
    model.rrm       the model, see ``rerank_engine.format``
    features.toml   the feature spec
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank_engine.errors import BundleError, RerankError
from rerank_engine.files import write_atomically

if TYPE_CHECKING:
    from rerank_engine.model import Model
    from rerank_features import FeatureSpec

FORMAT_VERSION = 1
_PARTS = ("manifest.json", "model.rrm", "features.toml")
_MAX_PART_BYTES = 256 * 1024 * 1024
_MAX_MANIFEST_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Bundle:
    """Everything that a device needs to re-rank.

    Attributes
    ----------
    name
        For people.
    model_bytes
        A model file.
    spec_text
        A feature spec as TOML.
    facts
        Free facts that travel along: data, training options, measured quality.

    Examples
    --------
    >>> from rerank_sdk.bundle import Bundle, builtin_bundle
    >>> Bundle.read(builtin_bundle()).name
    'movielens-din'
    """

    name: str
    model_bytes: bytes = field(repr=False)
    spec_text: str = field(repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def build(cls, name: str, model: Model, spec: FeatureSpec, facts: Mapping[str, Any] | None = None) -> Bundle:
        """Put a converted model and its feature spec together, after checking that they fit.

        Raises
        ------
        BundleError
            The model wants an array that the spec does not emit, or another shape of it.
        """
        from rerank_engine.format import model_bytes
        from rerank_engine.model import Model
        from rerank_features import FeatureSpec

        for part, kind, way_out in ((model, Model, "Model.read(path)"), (spec, FeatureSpec, "FeatureSpec.from_toml")):
            if not isinstance(part, kind):
                raise BundleError(f"expected a {kind.__name__}, got {type(part).__name__}: read it by {way_out}")
        check_fit(model, spec)
        return cls(name, model_bytes(model.graph), spec.to_toml(), dict(facts or {}))

    def model(self) -> Model:
        """The model, verified."""
        from rerank_engine.model import Model

        return Model.read(self.model_bytes)

    def spec(self) -> FeatureSpec:
        """The feature spec, verified."""
        from rerank_features import FeatureSpec

        return FeatureSpec.from_toml(self.spec_text)

    def to_bytes(self) -> bytes:
        """The file's bytes; equal for equal parts."""
        manifest = {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "model_sha256": hashlib.sha256(self.model_bytes).hexdigest(),
            "features_sha256": hashlib.sha256(self.spec_text.encode()).hexdigest(),
            "facts": self.facts,
        }
        parts = (json.dumps(manifest, indent=1, sort_keys=True).encode(), self.model_bytes, self.spec_text.encode())
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, content in zip(_PARTS, parts, strict=True):
                entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.create_system = 3  # the same on every system
                archive.writestr(entry, content)
        return buffer.getvalue()

    def save(self, path: str | Path) -> None:
        """Write the file; it is never seen half written.

        Raises
        ------
        BundleError
            It cannot be written; an existing file is unchanged.
        """
        try:
            write_atomically(Path(path), [self.to_bytes()])
        except OSError as error:
            raise BundleError(f"cannot write bundle {path}: {error}: check the folder and its rights") from error

    @classmethod
    def read(cls, path: str | Path) -> Bundle:
        """Read a bundle and check its parts against its manifest.

        Raises
        ------
        BundleError
            Not a bundle, damaged, or of a newer format.
        """
        if not isinstance(path, str | Path):
            raise BundleError(f"expected the path of a bundle, got {type(path).__name__}: give a file")
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                if sorted(names) != sorted(_PARTS):
                    raise BundleError(f"bundle {path} holds {names}, expected {list(_PARTS)}")
                manifest_text, model, spec = (
                    _read_part(archive, name, _MAX_MANIFEST_BYTES if index == 0 else _MAX_PART_BYTES)
                    for index, name in enumerate(_PARTS)
                )
            manifest = json.loads(manifest_text)
            version = manifest["format_version"]
            if version != FORMAT_VERSION:
                raise BundleError(
                    f"bundle {path} has format {version!r}; this version reads {FORMAT_VERSION}: update rerank-sdk"
                )
            for part, content, key in (("model", model, "model_sha256"), ("feature spec", spec, "features_sha256")):
                if hashlib.sha256(content).hexdigest() != manifest[key]:
                    raise BundleError(f"bundle {path} is damaged: the {part}'s hash does not match its manifest")
            return cls(str(manifest["name"]), model, spec.decode(), dict(manifest["facts"]))
        except RerankError:
            raise
        except zipfile.BadZipFile as error:
            hint = "it is a model file: pack it with a feature spec by Bundle.build" if _is_model(path) else str(error)
            raise BundleError(f"cannot read bundle {path}: {hint}") from error
        except (OSError, zipfile.LargeZipFile, EOFError, NotImplementedError) as error:
            raise BundleError(f"cannot read bundle {path}: {error}") from error
        except (KeyError, TypeError, ValueError, RuntimeError, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
            raise BundleError(f"bundle {path} is damaged: {type(error).__name__} {error}") from error


def _is_model(path: str | Path) -> bool:
    with Path(path).open("rb") as file:
        return file.read(4) == b"\x89RRM"


def check_fit(model: Model, spec: FeatureSpec) -> None:
    """Check that the spec emits what the model reads.

    Raises
    ------
    BundleError
        Names the array, what the model wants and what the spec gives.
    """
    from rerank_engine.graph import CANDIDATES, Dim, shape_text
    from rerank_features import FeaturePipeline

    emitted = FeaturePipeline(spec).array_shapes()
    candidates = Dim(CANDIDATES)
    for value in model.inputs:
        wanted = tuple(CANDIDATES if dim == candidates else dim for dim in value.shape)
        if emitted.get(value.name) != wanted:
            hint = _candidates_hint(value.shape, emitted.get(value.name))
            raise BundleError(
                f"the model reads {value.name!r} with shape {shape_text(value.shape)}, but feature spec {spec.name!r}"
                f" emits {emitted.get(value.name, 'no such array')}{hint}"
            )
        # Ids come as int32, which the engine widens; everything else as float32.
        fitting = ("int32", "int64") if value.name == "ids" or value.name.endswith("_ids") else ("float32",)
        if value.dtype not in fitting:
            raise BundleError(f"the model reads {value}, but the spec emits it as {fitting[0]}")
    score = model.outputs[0]
    if score.shape not in ((candidates,), (candidates, 1)):
        raise BundleError(f"the model's first output must be one score a candidate, it is {score}")


def _candidates_hint(shape: tuple[Any, ...], emitted: tuple[str | int, ...] | None) -> str:
    fixed = emitted is not None and emitted[:1] == ("N",) and bool(shape) and isinstance(shape[0], int)
    return "; N counts candidates: export the model with a dynamic first dimension" if fixed else ""


def builtin_bundle() -> Path:
    """Path of the bundle that the wheel carries: DIN, trained on MovieLens-100K."""
    return Path(__file__).parent / "bundles" / "movielens_din.rrb"


def _read_part(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    entry = archive.getinfo(name)
    if entry.file_size > limit:
        raise BundleError(
            f"bundle {archive.filename}: part {name!r} has {entry.file_size} bytes, at most {limit} are read"
        )
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BundleError(
            f"bundle {archive.filename}: part {name!r} is packed by method {entry.compress_type}, expected deflate (8):"
            " write it by Bundle.save"
        )
    return archive.read(name)
