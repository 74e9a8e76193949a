"""The errors of the whole project: one small hierarchy, rooted here because every package may import it.

Each message names the thing, what was expected, what came, and the way out.
"""


class RerankError(Exception):
    """Root of every error that this project raises on purpose."""


class ConversionError(RerankError):
    """A source model cannot become a graph: unreadable, inconsistent, or beyond what the importer knows."""


class UnsupportedOperatorError(ConversionError):
    """An operator, an attribute or a shape of it is not understood; conversion stops and names it."""


class GraphError(RerankError):
    """A graph breaks its own rules: a missing value, a wrong dtype, a cycle."""


class ModelFileError(RerankError):
    """A stored model, image or bundle is damaged, truncated, of a newer version, or not ours."""


class CompileError(RerankError):
    """A plan could not become machine code for this target."""


class InputError(RerankError, ValueError):
    """An array given to an engine has the wrong name, dtype, shape or content."""


class SpecError(RerankError, ValueError):
    """A feature specification is wrong: unknown field, kind, window or option."""


class EventError(RerankError, ValueError):
    """An event, item or request breaks the border's rules."""


class StoreError(RerankError):
    """The event store cannot be opened, migrated, read or written."""


class BundleError(RerankError):
    """A bundle's parts do not fit each other or this version."""


class DataError(RerankError):
    """A data set is missing, damaged, or not the one that was expected."""


class MissingExtraError(RerankError, ImportError):
    """An optional dependency is not installed.

    Parameters
    ----------
    feature
        What the caller tried to do.
    extra
        Name of the extra of ``rerank-sdk`` that brings the dependency.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency: pip install 'rerank-sdk[{extra}]'")
        self.extra = extra
