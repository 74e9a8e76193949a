"""The specs that come with the package, ready to use and to start from.

>>> from rerank_features.ready import ready_spec
>>> ready_spec("edgerec").sequences[0].name
'exposures'
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from rerank_engine.errors import SpecError
from rerank_features.spec import FeatureSpec

READY_SPECS: tuple[str, ...] = ("feed", "edgerec", "kuaishou", "metarank")
"""Names of the specs: a plain feed, and what three public systems compute."""


def ready_spec_path(name: str) -> Path:
    """The TOML file of a spec, to copy and change.

    Parameters
    ----------
    name
        One of :data:`READY_SPECS`.

    Raises
    ------
    SpecError
        There is no such spec.

    Examples
    --------
    >>> ready_spec_path("feed").name
    'feed.toml'
    """
    if name not in READY_SPECS:
        nearest = get_close_matches(str(name), READY_SPECS, 1)
        meant = f"did you mean {nearest[0]!r}?" if nearest else "take one of them, or give FeatureSpec.from_toml a path"
        raise SpecError(f"there is no ready spec {name!r} (there are: {', '.join(map(repr, READY_SPECS))}); {meant}")
    return Path(__file__).parent / "specs" / f"{name}.toml"


def ready_spec(name: str) -> FeatureSpec:
    """Read a spec that comes with the package.

    Parameters
    ----------
    name
        One of :data:`READY_SPECS`.

    Raises
    ------
    SpecError
        There is no such spec.

    Examples
    --------
    >>> len(ready_spec("edgerec").dense)
    68
    >>> ready_spec("edgerek")
    Traceback (most recent call last):
    rerank_engine.errors.SpecError: there is no ready spec 'edgerek' (there are: 'feed', 'edgerec', 'kuaishou', \
'metarank'); did you mean 'edgerec'?
    """
    return FeatureSpec.from_toml(ready_spec_path(name))
