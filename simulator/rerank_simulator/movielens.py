"""The MovieLens-100K experiment: how the log is cut in time, how models are trained, which policies are compared.

    events   0 % ──────────── 40 % ─────────── 70 % ───── 80 % ──────────── 100 %
             item embeddings    training lists   early      replay: figures
             are learned                         stopping   are reported on it

The server is retrained every week on everything before; the model on the device is trained once, at 70 %.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank_engine import convert
from rerank_engine.errors import MissingExtraError
from rerank_features import FeatureSpec
from rerank_features.training_set import TrainingSet, build_training_set
from rerank_sdk.bundle import Bundle
from rerank_sdk.reranker import Reranker
from rerank_simulator.logs.movielens import RatingLog
from rerank_simulator.policies import OnDevice, Policy, Popularity, ServerOrder
from rerank_simulator.timeline import CHECKPOINTS, Entry, Timeline

if TYPE_CHECKING:
    from rerank_models.train import TrainOptions

Progress = Callable[[int, int, str], None]

SERVER, POPULARITY = "server order", "popularity"
WITHOUT_EVENTS, WITH_EVENTS, PERSONALISED = "model, no recent events", "model", "model, personalised"


@dataclass(frozen=True)
class Split:
    """Shares of the events, in order of time, at which the log is cut.

    Attributes
    ----------
    embeddings, training, validation
        Where each part ends; the replay starts at the last.
    """

    embeddings: float = 0.4
    training: float = 0.7
    validation: float = 0.8

    def moment_ms(self, log: RatingLog, share: float) -> int:
        """Time of the event at a share of the log."""
        return int(log.time_ms[int(len(log.time_ms) * share)])


SPLIT = Split()


def movielens_spec() -> FeatureSpec:
    """The feature spec of the bundled models.

    Examples
    --------
    >>> movielens_spec().name
    'movielens'
    """
    return FeatureSpec.from_toml(Path(__file__).parent / "specs" / "movielens.toml")


def make_timeline(log: RatingLog, *, training: bool = False) -> Timeline:
    """The log as a timeline; for training, lists are also ordered on delivery, before any event of the visit."""
    checkpoints = (0, *CHECKPOINTS) if training else CHECKPOINTS
    dim = movielens_spec().items.embedding_dim
    return Timeline(log, SPLIT.moment_ms(log, SPLIT.embeddings), dim, checkpoints)


def replay_entries(timeline: Timeline) -> Iterator[Entry]:
    """What happens in the part of the log that figures are reported on, and before it."""
    end_ms = int(timeline.log.time_ms[-1]) + 1
    return timeline.entries(SPLIT.moment_ms(timeline.log, SPLIT.validation), end_ms)


def training_sets(log: RatingLog, spec: FeatureSpec) -> tuple[TrainingSet, TrainingSet]:
    """Lists to learn from and lists to stop by; neither holds anything of what happens after its end."""
    timeline = make_timeline(log, training=True)
    cuts = [SPLIT.moment_ms(log, share) for share in (SPLIT.embeddings, SPLIT.training, SPLIT.validation)]
    first, second = (
        build_training_set(spec, timeline.labelled(timeline.entries(start, end, embargo=True)))
        for start, end in ((cuts[0], cuts[1]), (cuts[1], cuts[2]))
    )
    return first, second


def train_bundle(
    model: str,
    log: RatingLog,
    *,
    spec: FeatureSpec | None = None,
    options: TrainOptions | None = None,
    onnx_path: Path | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Train a model of the zoo on MovieLens and pack it with its features.

    Parameters
    ----------
    model
        ``"mlp"``, ``"deepfm"`` or ``"din"``.
    log
        MovieLens-100K.
    spec
        Features; by default :func:`movielens_spec`.
    options
        How to train.
    onnx_path
        Where to keep the exported model; None keeps it nowhere.
    progress
        Called with (epochs done, epochs at most, text).

    Raises
    ------
    MissingExtraError
        PyTorch is not installed.
    """
    try:
        from rerank_models.export import export_onnx
        from rerank_models.train import TrainOptions, train_model
    except ImportError as error:
        raise MissingExtraError("training", "train") from error
    spec = spec or movielens_spec()
    options = options or TrainOptions()
    training, validation = training_sets(log, spec)
    result = train_model(model, spec, training, validation, options, progress)
    with tempfile.TemporaryDirectory() as folder:
        path = onnx_path or Path(folder) / f"movielens_{model}.onnx"
        export_onnx(result.model, path)
        converted = convert(path, expose_head=True)
    facts: dict[str, Any] = {
        "data": "MovieLens-100K (GroupLens); server lists are constructed",
        "split": asdict(SPLIT),
        "training_lists": training.lists,
        "validation_lists": validation.lists,
        "validation_ndcg10": round(result.validation_ndcg10[result.best_epoch], 6),
        "best_epoch": result.best_epoch,
        "options": asdict(options),
    }
    return Bundle.build(f"movielens-{model}", converted, spec, facts)


@contextmanager
def standard_policies(bundle: Bundle, *, cache_dir: Path | None = None) -> Iterator[dict[str, Policy]]:
    """The five policies of the report, each on-device one with a fresh state of its own.

    Parameters
    ----------
    bundle
        The model under test.
    cache_dir
        Where machine code is kept.
    """
    with ExitStack() as stack:

        def on_device(**options: bool) -> OnDevice:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            reranker = Reranker.open(folder, bundle, deadline_ms=None, strict=True, cache_dir=cache_dir)
            stack.callback(reranker.close)
            return OnDevice(reranker, **options)

        yield {
            SERVER: ServerOrder(),
            POPULARITY: Popularity(),
            WITHOUT_EVENTS: on_device(recent_events=False),
            WITH_EVENTS: on_device(),
            PERSONALISED: on_device(personalise=True),
        }
