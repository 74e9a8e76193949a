"""Small models that LightGBM and XGBoost trained; ``make_trees.py`` writes them."""

from __future__ import annotations

from pathlib import Path

from .source import LIGHTGBM_JSON, LIGHTGBM_TEXT, XGBOOST_JSON, XGBOOST_UBJ, Source

_DATA = Path(__file__).parent / "data"
_KINDS = {
    ("lightgbm", ".txt"): LIGHTGBM_TEXT,
    ("lightgbm", ".json"): LIGHTGBM_JSON,
    ("xgboost", ".json"): XGBOOST_JSON,
    ("xgboost", ".ubj"): XGBOOST_UBJ,
}


def sources() -> list[Source]:
    """All of them."""
    found = []
    for path in sorted(_DATA.iterdir()):
        framework, _, name = path.stem.partition("_")
        main = f"model{path.suffix}"
        found.append(Source(_KINDS[framework, path.suffix], name, {main: path.read_bytes()}, main))
    return found
