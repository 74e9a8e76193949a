"""Segment's e-commerce calls, written after its public specification, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rerank_features import Event
from rerank_sdk import EventStore
from rerank_sdk.exchange import EventMapping, ImportReport, import_events
from rerank_sdk.exchange.mapper import Mapper

TIME_MS = 1_709_287_200_500

COMMON: dict[str, Any] = {
    "type": "track",
    "anonymousId": "anon-1",
    "userId": "ann",
    "timestamp": "2024-03-01T10:00:00.500Z",
    "originalTimestamp": "2024-03-01T12:07:00.400+02:00",
    "sentAt": "2024-03-01T10:07:01.000Z",
    "receivedAt": "2024-03-01T10:00:01.100Z",
    "context": {"library": {"name": "analytics.js", "version": "2.11.1"}, "ip": "203.0.113.7"},
    "integrations": {},
    "version": 2,
}

PRODUCTS = [
    {"product_id": "g1", "sku": "G-1", "name": "Chess", "price": 19, "position": 1, "category": "Games"},
    {"product_id": "g2", "sku": "G-2", "name": "Go", "price": 24.5, "position": 2, "category": "Games"},
    {"sku": "G-3", "name": "Ludo", "price": 9.99},
]


def call(number: int, event: str, properties: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {**COMMON, "messageId": f"m{number}", "event": event, "properties": properties, **other}


def load(tmp_path: Path, calls: list[dict[str, Any]]) -> tuple[ImportReport, list[Event]]:
    log = tmp_path / "segment.json"
    log.write_text("".join(json.dumps(one) + "\n" for one in calls), encoding="utf-8")
    with EventStore.open(tmp_path / "events.db") as store:
        return import_events(store, log, format="segment"), list(store.read())


def one(event: str, properties: dict[str, Any], **other: Any) -> Event:
    found = Mapper(EventMapping.builtin("segment")).map(call(1, event, properties, **other))
    assert not found.refused
    (only,) = found.events
    return only


@pytest.mark.parametrize("name", ["Product List Viewed", "Product List Filtered", "Viewed Product Category"])
def test_a_viewed_list_is_one_list_of_impressions(name: str, tmp_path: Path) -> None:
    properties = {"list_id": "deals", "category": "Deals", "products": PRODUCTS}
    report, kept = load(tmp_path, [call(1, name, properties), call(2, name, properties)])
    assert (report.records, report.new, report.rejected, report.skipped) == (2, 6, {}, {})
    first = [event for event in kept if event.request == "m1"]
    assert [(event.item, event.position, event.id) for event in first] == [
        ("g1", 0, "m1#0"),
        ("g2", 1, "m1#1"),
        ("G-3", 2, "m1#2"),
    ]
    assert {(event.kind, event.user, event.time_ms) for event in kept} == {("impression", "ann", TIME_MS)}
    assert first[0].attributes == {"list_id": "deals", "category": "Games", "price": 19}
    assert first[2].attributes == {"list_id": "deals", "category": "Deals", "price": 9.99}


@pytest.mark.parametrize("name", ["Product Clicked", "Clicked Product"])
def test_a_click(name: str) -> None:
    properties = {"product_id": "g2", "sku": "G-2", "category": "Games", "price": 24.5, "position": 2}
    assert one(name, properties) == Event(
        user="ann",
        item="g2",
        kind="click",
        time_ms=TIME_MS,
        position=1,
        attributes={"category": "Games", "price": 24.5},
        id="m1",
    )


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("Product Viewed", "view", None),
        ("Viewed Product", "view", None),
        ("Product Added", "add_to_cart", 24.5),
        ("Added Product", "add_to_cart", 24.5),
        ("Wishlist Product Added to Cart", "add_to_cart", 24.5),
        ("Product Removed", "remove_from_cart", 24.5),
        ("Removed Product", "remove_from_cart", 24.5),
        ("Product Added to Wishlist", "like", None),
        ("Product Removed from Wishlist", "remove_from_wishlist", None),
        ("Product Shared", "share", None),
        ("Product Reviewed", "review", 4.0),
    ],
)
def test_calls_about_one_product(name: str, kind: str, value: float | None) -> None:
    event = one(name, {"product_id": "g2", "price": 24.5, "rating": "4", "quantity": 2, "position": 7})
    assert (event.item, event.kind, event.value, event.position, event.request) == ("g2", kind, value, None, None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Order Completed", "purchase"),
        ("Completed Order", "purchase"),
        ("Order Refunded", "refund"),
        ("Order Cancelled", "refund"),
    ],
)
def test_an_order_is_an_event_for_each_product(name: str, kind: str, tmp_path: Path) -> None:
    products = [{**product, "quantity": number} for number, product in enumerate(PRODUCTS, 1)]
    properties = {"order_id": "o1", "revenue": 25.0, "currency": "USD", "products": products}
    _, kept = load(tmp_path, [call(1, name, properties)])
    assert [(event.item, event.kind, event.value) for event in kept] == [
        ("g1", kind, 19.0),
        ("g2", kind, 24.5),
        ("G-3", kind, 9.99),
    ]
    assert kept[1].attributes == {"order_id": "o1", "quantity": 2, "currency": "USD"}


def test_a_repeated_delivery_is_recognised(tmp_path: Path) -> None:
    again = call(1, "Product Clicked", {"product_id": "g1"}, receivedAt="2024-03-01T11:00:00Z", context={})
    report, kept = load(tmp_path, [call(1, "Product Clicked", {"product_id": "g1"}), again])
    assert (report.new, report.duplicates, len(kept)) == (1, 1, 1)


def test_who_and_when_from_what_is_there() -> None:
    properties = {"product_id": "g1"}
    assert one("Product Clicked", properties, userId=None).user == "anon-1"
    assert one("Product Clicked", properties, userId="").user == "anon-1"
    before = {"timestamp": None, "originalTimestamp": "2024-03-01T10:00:00.500Z"}
    assert one("Product Clicked", properties, **before).time_ms == TIME_MS
    assert one("Product Clicked", properties, timestamp="2024-03-01T12:00:00.5+02:00").time_ms == TIME_MS
    assert one("Product Clicked", properties, type=None).time_ms == TIME_MS


def test_calls_that_name_no_item_are_skipped_and_counted(tmp_path: Path) -> None:
    calls = [
        {**COMMON, "type": "page", "messageId": "m1", "name": "Home", "properties": {"url": "https://shop.example/"}},
        {**COMMON, "type": "screen", "messageId": "m2", "name": "Home", "properties": {}},
        {**COMMON, "type": "identify", "messageId": "m3", "traits": {"plan": "pro"}},
        call(4, "Signed Up", {}),
        call(5, "Promotion Viewed", {"promotion_id": "p1", "position": "home_banner_top"}),
        call(6, "Order Refunded", {"order_id": "o1"}),
        call(7, "Product List Viewed", {"list_id": "deals", "products": []}),
    ]
    report, kept = load(tmp_path, calls)
    assert (kept, report.rejected) == ([], {})
    assert report.skipped == {
        "not a track call": 3,
        "empty list properties.products": 1,
        "no list properties.products": 1,
        "no rule for 'Promotion Viewed'": 1,
        "no rule for 'Signed Up'": 1,
    }
    assert report.skipped_total == report.records == 7


def test_what_breaks_the_specification_is_rejected_with_its_reason(tmp_path: Path) -> None:
    calls = [
        call(1, "Product Clicked", {"name": "no id"}),
        call(2, "Product Clicked", {"product_id": "g1", "position": 0}),
        call(3, "Product Clicked", {"product_id": "g1"}, userId=None, anonymousId=None),
        call(4, "Product Added", {"product_id": "g1", "price": "a lot"}),
        call(5, "Product Clicked", {"product_id": "g1"}, timestamp="just now"),
        call(6, "Order Completed", {"products": [{"product_id": "g1"}, {"price": 5}]}),
    ]
    report, kept = load(tmp_path, calls)
    assert report.rejected == {"item": 2, "position": 1, "time_ms": 1, "user": 1, "value": 1}
    assert [event.item for event in kept] == ["g1"]


def test_names_of_skipped_events_are_bounded(tmp_path: Path) -> None:
    report, _ = load(tmp_path, [call(number, f"Custom {number}", {}) for number in range(150)])
    assert report.skipped_total == 150
    assert report.skipped["others"] == 50
    assert len(report.skipped) == 101
