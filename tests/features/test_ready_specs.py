"""The specs that come with the package: they load by name, and their columns hold what a hand computes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rerank_engine.errors import SpecError
from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
from rerank_features.ready import READY_SPECS, ready_spec, ready_spec_path

START_S = 1_700_000_000  # a Tuesday, 22:13:20 UTC
DIM = 16


def log(value: float) -> float:
    return math.copysign(math.log1p(abs(value)), value)


def vector(**places: float) -> tuple[float, ...]:
    """An embedding with numbers at places ``e0``, ``e1`` …, zeros elsewhere."""
    return tuple(places.get(f"e{place}", 0.0) for place in range(DIM))


class Scene:
    """One user's events under a ready spec, and what comes out of a request 60 s after the start."""

    def __init__(self, name: str, items: list[Item], events: list[tuple[Any, ...]]) -> None:
        self.spec = ready_spec(name)
        self.items = items
        self.pipeline = FeaturePipeline(self.spec)
        self.pipeline.remember(items)
        for user, kind, item, at_s, value, position in events:
            time_ms = int((START_S + at_s) * 1000)
            self.pipeline.update(
                Event(user=user, kind=kind, item=item, time_ms=time_ms, value=value, position=position)
            )

    def emit(self, **options: Any) -> dict[str, Any]:
        request = Request(user="u", time_ms=(START_S + 60) * 1000, candidates=self.items, **options)
        return self.pipeline.emit(request).arrays

    def columns(self, **options: Any) -> dict[str, list[float]]:
        dense = self.emit(**options)["dense"]
        return {name: dense[:, place].tolist() for place, name in enumerate(self.pipeline.dense_columns)}


def assert_columns(columns: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    for name, values in expected.items():
        assert columns[name] == pytest.approx(values, rel=2e-6, abs=2e-6), name


@pytest.mark.parametrize("name", READY_SPECS)
def test_a_ready_spec_loads_by_name_and_survives_toml(name: str) -> None:
    spec = ready_spec(name)
    assert spec.name == name == ready_spec_path(name).stem
    assert FeatureSpec.from_toml(spec.to_toml()) == spec
    assert list(FeaturePipeline(spec).dense_columns) == [feature.name for feature in spec.dense]
    everything = [kind for feature in spec.dense for kind in [feature.kind, feature.transform]]
    assert "server_score" in everything


@pytest.mark.parametrize(("name", "message"), [("edgerek", "did you mean 'edgerec'"), ("/", "there are: 'feed'")])
def test_an_unknown_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ready_spec(name)


def test_every_file_of_the_folder_is_listed() -> None:
    folder = ready_spec_path("feed").parent
    assert sorted(path.stem for path in folder.glob("*.toml")) == sorted(READY_SPECS)


def test_edgerec_has_sixty_columns_and_two_sequences_of_pairs() -> None:
    spec = ready_spec("edgerec")
    shapes = FeaturePipeline(spec).array_shapes()
    assert len(spec.dense) >= 60
    assert [sequence.name for sequence in spec.sequences if sequence.emit] == ["exposures", "page_views"]
    for name, length, actions in (("exposures", 50, 4), ("page_views", 30, 9)):
        sequence = next(one for one in spec.sequences if one.name == name)
        assert len(sequence.actions) == actions
        assert shapes[f"{name}_embedding"] == (length, DIM)
        assert shapes[f"{name}_dense"] == (length, len(sequence.columns) + actions)


def shop() -> list[Item]:
    def item(number: int, category: str, price: float, embedding: tuple[float, ...]) -> Item:
        return Item(
            id=f"i{number}",
            categorical={"category": category, "shop": f"s{number % 2}", "brand": "b"},
            numeric={"price": price, "sales": 9.0, "published_s": float(START_S - 1000 * number)},
            embedding=embedding,
        )

    return [item(0, "shoes", 10, vector(e0=1)), item(1, "hats", 20, vector(e1=2)), item(2, "shoes", 60, vector(e0=3))]


def shop_events() -> list[tuple[Any, ...]]:
    return [
        ("u", "impression", "i0", 0, 4.0, 0),
        ("u", "scroll", "i0", 1, 2.0, None),
        ("u", "scroll", "i0", 2, 5.0, None),
        ("u", "click", "i0", 4, None, 0),
        ("u", "view_comments", "i0", 6, None, None),
        ("u", "add_to_cart", "i0", 8, None, None),
        ("u", "dwell", "i0", 14, 10.0, None),
        ("u", "impression", "i1", 20, 0.25, 1),
        ("u", "hide", "i1", 21, None, None),
        ("u", "impression", "i2", 30, 1.0, 2),
        ("v", "click", "i1", 31, None, 0),
    ]


def test_edgerec_columns_as_a_hand_computes_them() -> None:
    columns = Scene("edgerec", shop(), shop_events()).columns(scores=[1.0, 2.0, 3.0], context={"clock_offset_min": 60})
    deviation = math.sqrt(2 / 3)
    hour = (22 + 14 / 60 + 20 / 3600 + 1) % 24
    shoes, hats = "shoes", "hats"
    of = [shoes, hats, shoes]
    expected = {
        # server, item, list, moment
        "server_score": [-1 / deviation, 0, 1 / deviation],
        "server_rank": [1, 1 / 2, 1 / 3],
        "price": [log(10), log(20), log(60)],
        "price_against_list": [-10, 0, 40],
        "price_rank": [1, 0.5, 0],
        "sales": [log(9)] * 3,
        "click_rate": [0, 0, 0],
        "age_s": [log(60), log(1060), log(2060)],
        "list_size": [log(3)] * 3,
        "list_share_category": [0.5, 0, 0.5],
        "hour_sin": [math.sin(2 * math.pi * hour / 24)] * 3,
        "hour_cos": [math.cos(2 * math.pi * hour / 24)] * 3,
        # the session
        "session_impressions": [log(3)] * 3,
        "session_clicks": [log(1)] * 3,
        "session_hides": [log(1)] * 3,
        "session_dwell_s": [log(10)] * 3,
        "session_click_rate": [(1 + 5 * 0.05) / (3 + 5)] * 3,
        "click_rate_1w": [(1 + 20 * 0.05) / (3 + 20)] * 3,
        "clicks_5m": [log(1)] * 3,
        "exposure_s_5m": [log((5.25 + 3 * 2) / (3 + 3))] * 3,
        "scroll_speed_5m": [(7 + 3 * 1) / (2 + 3)] * 3,
        "fast_scrolls_session": [log(1)] * 3,
        "idle_s": [log(30)] * 3,
        "since_click_s": [log(56)] * 3,
        "exposures_without_click": [log(2)] * 3,
        "categories_seen": [log(2)] * 3,
        # the item
        "item_impressions": [log(1)] * 3,
        "item_impression_ago_s": [log(60), log(40), log(30)],
        "item_exposure_s": [log(4), log(0.25), log(1)],
        "item_clicks": [log(1), 0, 0],
        "item_click_ago_s": [log(56), log(2_592_000), log(2_592_000)],
        "item_hides": [0, 1, 0],
        # its category
        "category_impressions_session": [{shoes: log(2), hats: log(1)}[c] for c in of],
        "category_clicks_session": [{shoes: log(1), hats: 0}[c] for c in of],
        "category_click_rate_session": [{shoes: 1.25 / 7, hats: 0.25 / 6}[c] for c in of],
        "category_click_rate_1d": [{shoes: 1.5 / 12, hats: 0.5 / 11}[c] for c in of],
        "category_exposure_s_session": [{shoes: log(11 / 5), hats: log(6.25 / 4)}[c] for c in of],
        "category_dwell_s_1d": [{shoes: log(40 / 4), hats: log(10)}[c] for c in of],
        "category_skips_session": [{shoes: 0, hats: log(1)}[c] for c in of],
        "category_hides_1w": [{shoes: 0, hats: log(1)}[c] for c in of],
        "category_carts_1w": [{shoes: log(1), hats: 0}[c] for c in of],
        "category_purchases_1w": [0, 0, 0],
        "category_click_ago_s": [{shoes: log(56), hats: log(2_592_000)}[c] for c in of],
        "category_impression_ago_s": [{shoes: log(30), hats: log(40)}[c] for c in of],
        "category_ignored": [{shoes: log(1), hats: log(1)}[c] for c in of],
        # shop: s0 of i0 and i2, s1 of i1; brand: all the same
        "shop_impressions_1d": [log(2), log(1), log(2)],
        "shop_clicks_1d": [log(1), 0, log(1)],
        "shop_dwell_s_1w": [log(10), 0, log(10)],
        "shop_visits_1w": [0, 0, 0],
        "brand_clicks_1w": [log(1)] * 3,
        "brand_hides_1w": [log(1)] * 3,
        # against what was opened (i0: price 10, first place) and seen (mean price 30)
        "price_to_opened": [log(1), log(2), log(6)],
        "price_minus_last_opened": [0, 10, 50],
        "price_to_seen": [log(1 / 3), log(2 / 3), log(2)],
        "place_minus_last_opened": [0, 1, 2],
        "category_share_opened": [1, 0, 1],
        "category_share_seen": [2 / 3, 1 / 3, 2 / 3],
        "like_opened": [1, 0, 1],
        "like_last_opened": [1, 0, 1],
        "like_some_opened": [1, 0, 1],
        "like_stayed": [1, 0, 1],
        "like_seen": [5 / 5.25, 0.25 / 5.25, 5 / 5.25],
        "like_hidden": [0, 1, 0],
    }
    assert_columns(columns, expected)
    # Counted in buckets of 20 minutes: the click's age is known to ten minutes.
    assert log(2 ** (-20 / 60)) < columns["category_clicks_fading"][0] <= log(1)
    # The three that differ from these by their window only.
    assert set(columns) - set(expected) == {
        "category_clicks_fading",
        "category_click_rate_1w",
        "shop_click_rate_1w",
        "brand_click_rate_1w",
        "purchase_rate",
    }


def test_edgerec_sequences_are_pairs_of_item_and_action() -> None:
    arrays = Scene("edgerec", shop(), shop_events()).emit()
    assert arrays["exposures_mask"].sum() == 3
    assert arrays["page_views_mask"].sum() == 1
    # value, age, gap, position; scrolls, their speed, hides, clicks. Newest first.
    expected = [
        [log(1), log(30), log(10), math.log(4), 0, 0, 0, 0],
        [log(0.25), log(40), log(20), math.log(3), 0, 0, 1, 0],
        [log(4), log(60), 0, math.log(2), 2, 7, 0, 1],
    ]
    np.testing.assert_allclose(arrays["exposures_dense"][:3], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(arrays["exposures_embedding"][:3], [vector(e0=3), vector(e1=2), vector(e0=1)])
    # age, gap, position; seconds on the page, cart, favourite, purchase, comments, shop, pictures, options, chat.
    view = [log(56), 0, math.log(2), 10, 1, 0, 0, 1, 0, 0, 0, 0]
    np.testing.assert_allclose(arrays["page_views_dense"][0], view, rtol=1e-6, atol=1e-6)
    assert (arrays["page_views_dense"][1:] == 0).all()


def videos() -> list[Item]:
    def video(number: int, category: str, effective: float, seconds: float, tags: tuple[str, ...]) -> Item:
        return Item(
            id=f"v{number}",
            categorical={"category": category, "author": f"a{number}", "music": "m"},
            multi_categorical={"tags": tags},
            numeric={"p_effective_view": effective, "p_like": effective / 10, "duration_s": seconds, "plays": 99.0},
            embedding=vector(**{f"e{number}": 1.0}),
        )

    return [video(0, "cats", 0.5, 10, ("x", "y")), video(1, "dogs", 0.2, 20, ("y",)), video(2, "cats", 0.6, 30, ())]


def test_kuaishou_columns_as_a_hand_computes_them() -> None:
    events = [
        ("u", "impression", "v0", 0, None, 0),
        ("u", "completion", "v0", 8, 0.8, None),
        ("u", "watch", "v0", 8, 8.0, 0),
        ("u", "like", "v0", 9, None, None),
        ("u", "follow", "v0", 9.5, None, None),
        ("u", "impression", "v1", 10, None, 1),
        ("u", "completion", "v1", 12, 0.1, None),
        ("u", "watch", "v1", 12, 2.0, 1),
        ("u", "skip", "v1", 12, None, None),
    ]
    scene = Scene("kuaishou", videos(), events)
    columns = scene.columns(context={"bandwidth_mbit_s": 7.0, "network": "4g", "volume": "muted"})
    expected = {
        "server_score": [0, 0, 0],
        "server_rank": [1, 1 / 2, 1 / 3],
        "p_effective_view": [0.5, 0.2, 0.6],
        "p_effective_view_rank": [0.5, 1, 0],
        "p_effective_view_minus_previous": [0, -0.3, 0.4],
        "p_like_minus_previous": [0, -0.03, 0.04],
        "p_effective_view_minus_watched": [0.3, 0, 0.4],
        "p_like_minus_watched": [0.03, 0, 0.04],
        "place_minus_watched": [-1, 0, 1],
        "duration_to_watched": [log(10 / 15), log(20 / 15), log(30 / 15)],
        "duration_s": [log(10), log(20), log(30)],
        "plays": [log(99)] * 3,
        "age_s": [log(31_536_000)] * 3,
        "bandwidth_mbit_s": [log(7)] * 3,
        "battery_share": [1, 1, 1],
        "category_shown_ago_s": [log(60), log(50), log(60)],
        "author_shown_ago_s": [log(60), log(50), log(86_400)],
        "music_shown_ago_s": [log(50)] * 3,
        "tag_shown_ago_s": [log(50), log(50), log(86_400)],
        "category_shown_places_ago": [log(1), 0, log(1)],
        "author_shown_places_ago": [log(1), 0, log(50)],
        "session_watches": [log(2)] * 3,
        "session_watch_s": [log(10)] * 3,
        "session_effective_views": [log(1)] * 3,
        "completion_10m": [(0.9 + 1.5) / 5] * 3,
        "skip_rate_10m": [(1 + 1.5) / 7] * 3,
        "like_rate_1d": [(1 + 0.4) / 22] * 3,
        "skips_in_a_row": [log(1)] * 3,
        "categories_watched": [log(2)] * 3,
        "since_like_s": [log(51)] * 3,
        "category_watch_s_session": [log(24 / 3), log(18 / 3), log(24 / 3)],
        "category_completion_1d": [2.3 / 4, 1.6 / 4, 2.3 / 4],
        "category_like_rate_1d": [1.4 / 21, 0.4 / 21, 1.4 / 21],
        "category_skips_session": [0, log(1), 0],
        "author_follows": [1, 0, 0],
        "author_profile_visits_1w": [0, 0, 0],
        # of v0's tags x (as the category of v0) and y (both videos), the mean; v2 has none
        "tag_watch_s_session": [
            log((24 / 3 + 26 / 4) / 2),
            log(26 / 4),
            log(8),
        ],
        "item_shown": [log(1), log(1), 0],
        "like_watched": [0.8, 0.2, 0],
        "like_last_watched": [0, 1, 0],
        "like_liked": [1, 0, 0],
        "like_skipped": [0, 1, 0],
    }
    assert_columns(columns, expected)
    arrays = scene.emit(context={"network": "4g", "volume": "muted", "orientation": "upside down"})
    assert arrays["ids"][:, 1:].tolist() == [[4, 2, 1]] * 3
    # watched, newest first: value, age, gap, position; completion, like, follow, comment, forward, profile, hide
    expected_watched = [
        [log(2), log(48), log(4), math.log(3), 0.1, 0, 0, 0, 0, 0, 0],
        [log(8), log(52), 0, math.log(2), 0.8, 1, 1, 0, 0, 0, 0],
    ]
    np.testing.assert_allclose(arrays["watched_dense"][:2], expected_watched, rtol=1e-6, atol=1e-6)


def test_metarank_columns_as_a_hand_computes_them() -> None:
    def product(number: int, price: float, colours: tuple[str, ...], **fields: float) -> Item:
        return Item(
            id=f"p{number}",
            categorical={
                "category": "socks",
                "brand": f"b{number}",
                "title": ["red socks", "blue hat", "Socks"][number],
            },
            multi_categorical={"colours": colours, "tags": ("red",) if number == 0 else ()},
            numeric={"price": price, "created_at_s": float(START_S - 40), **fields},
        )

    items = [
        product(0, 100, ("red",), bm25=2.0, available=1.0, title_words=2.0),
        product(1, 200, ("red", "blue"), cosine=0.75, position=3.0),
        product(2, 250, ("pink",)),
    ]
    events = [
        ("u", "visit_search", "p0", 0, None, None),
        ("u", "impression", "p0", 1, None, 0),
        ("v", "impression", "p0", 1, None, 0),
        ("u", "click", "p0", 2, None, 0),
        ("v", "click", "p1", 3, None, 0),
        ("v", "purchase", "p1", 4, None, 0),
        ("u", "add_to_cart", "p0", 5, None, 0),
    ]
    context = {"query": "Red socks", "user_age": 30, "banner_examined": True, "platform": "mobile", "os": "beos"}
    scene = Scene("metarank", items, events)
    columns = scene.columns(scores=[3.0, 2.0, 1.0], context=context)
    time_of_day = 22 + 14 / 60 + 20 / 3600
    expected = {
        "price": [100, 200, 250],
        "available": [1, 0, 0],
        "popularity": [0, 0, 0],
        "user_age": [30] * 3,
        "banner_examined": [1] * 3,
        "title_words": [2, 0, 0],
        "price_scaled": [1, 2, 2.5],
        "price_log": [log(100), log(200), log(250)],
        "price_in_list": [0, 100 / 150, 1],
        "price_percentile": [1, 0.5, 0],
        "relevancy": [3, 2, 1],
        "bm25": [2, 0, 0],
        "cosine": [0, 0.75, 0],
        "position": [10, 3, 10],
        "title_match": [1, 0, 0.5],
        "tags_match": [0.5, 0, 0],
        "time_of_day": [time_of_day] * 3,
        "day_of_week": [1 + time_of_day / 24] * 3,
        "freshness": [100] * 3,
        "click_count": [1, 1, 0],
        "session_click_count": [1] * 3,
        "user_purchase_count": [0] * 3,
        "clicks_7": [1, 1, 0],
        "clicks_60": [1, 1, 0],
        "ctr_7": [0.5, 0, 0],
        "ctr_7_normalised": [(1 + 10) / (2 + 100), (1 + 10) / 100, 0.1],
        "conversion_30": [(0 + 2) / (1 + 100), (1 + 2) / (1 + 100), 0.02],
        "clicked_colour": [1, 1, 0],
        "clicked_tags": [1, 0, 0],
        "clicked_brand": [1, 0, 0],
        "clicked_category": [1, 1, 1],
        "clicked_category_session": [1, 1, 1],
        "carted_brand": [1, 0, 0],
        "referer_search": [1] * 3,
        "referer_paid": [0] * 3,
        "price_diff": [-100, 0, 50],
        "category_diff": [1, 1, 1],
        "colour_diff": [0.5, 0.5, 0],
    }
    assert_columns(columns, expected)
    ids = scene.emit(context=context)["ids"]
    # Colours from row 2 on, 1 for another; category; then platform, os, browser, referer, country.
    assert ids[:, :4].tolist() == [[2, 0, 0, 0], [2, 4, 0, 0], [1, 0, 0, 0]]
    assert ids[:, 5:].tolist() == [[2, 1, 0, 0, 0]] * 3
