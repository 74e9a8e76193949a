"""Snowplow's enriched events, as TSV and as JSON, written after its public specification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rerank_features import Event
from rerank_sdk import EventStore
from rerank_sdk.exchange import EventMapping, ImportReport, import_events, read_events
from rerank_sdk.exchange.record import RefusedRecord
from rerank_sdk.exchange.snowplow import COLUMNS, parse_enriched

TIME_MS = 1_709_287_200_500
VENDOR = "com.snowplowanalytics.snowplow.ecommerce"
ACTION = "unstruct_event_com_snowplowanalytics_snowplow_ecommerce_snowplow_ecommerce_action_1"
PRODUCT = "contexts_com_snowplowanalytics_snowplow_ecommerce_product_1"

PRODUCTS = [
    {"id": "g1", "name": "Chess", "category": "Games", "price": 19, "currency": "EUR", "position": 1, "quantity": 1},
    {"id": "g2", "name": "Go", "category": "Games/Old", "price": 24.5, "currency": "EUR", "position": 2},
    {"id": "g3", "category": "Games", "price": 9.99, "currency": "EUR"},
]


def schema(name: str, vendor: str = VENDOR) -> str:
    return f"iglu:{vendor}/{name}/jsonschema/1-0-2"


def fields(action: str | None, *, transaction: dict[str, Any] | None = None, **columns: Any) -> dict[str, Any]:
    """An event with its self-describing columns as objects."""
    entities = [{"schema": schema("product"), "data": product} for product in PRODUCTS]
    if transaction is not None:
        entities.append({"schema": schema("transaction"), "data": transaction})
    described = {
        "unstruct_event": {
            "schema": "iglu:com.snowplowanalytics.snowplow/unstruct_event/jsonschema/1-0-0",
            "data": {"schema": schema("snowplow_ecommerce_action"), "data": {"type": action, "name": "deals"}},
        },
        "contexts": {
            "schema": "iglu:com.snowplowanalytics.snowplow/contexts/jsonschema/1-0-1",
            "data": entities,
        },
    }
    return {
        "app_id": "shop",
        "platform": "web",
        "collector_tstamp": "2024-03-01 10:00:01.100",
        "dvce_created_tstamp": "2024-03-01 12:07:00.400",
        "derived_tstamp": "2024-03-01 10:00:00.500",
        "event": "unstruct" if action else "page_view",
        "event_id": "e1",
        "user_id": "ann",
        "domain_userid": "d-1",
        **(described if action else {}),
        **columns,
    }


def tsv(event: dict[str, Any]) -> bytes:
    texts = [event.get(name, "") for name in COLUMNS]
    return "\t".join(json.dumps(text) if isinstance(text, dict) else str(text) for text in texts).encode() + b"\n"


def sdk_json(event: dict[str, Any]) -> bytes:
    """What the analytics SDKs make of an event: schemas as names, times with T and Z."""
    plain = {key: value for key, value in event.items() if key not in ("contexts", "unstruct_event")}
    for name in plain:
        if name.endswith("_tstamp"):
            plain[name] = plain[name].replace(" ", "T") + "Z"
    if "unstruct_event" in event:
        plain[ACTION] = event["unstruct_event"]["data"]["data"]
        for entity in event["contexts"]["data"]:
            name = entity["schema"].split("/")[1]
            plain.setdefault(f"contexts_com_snowplowanalytics_snowplow_ecommerce_{name}_1", []).append(entity["data"])
    return json.dumps(plain).encode() + b"\n"


FORMS = pytest.mark.parametrize("form", [tsv, sdk_json, lambda event: json.dumps(event).encode() + b"\n"])


def load(tmp_path: Path, content: bytes) -> tuple[ImportReport, list[Event]]:
    log = tmp_path / "enriched"
    log.write_bytes(content)
    with EventStore.open(tmp_path / "events.db") as store:
        return import_events(store, log, format="snowplow"), list(store.read())


def test_the_columns_are_those_of_the_canonical_event() -> None:
    assert len(COLUMNS) == len(set(COLUMNS)) == 131
    places = {"event_id": 6, "user_id": 12, "domain_userid": 15, "contexts": 52, "se_value": 57, "unstruct_event": 58}
    assert {name: COLUMNS.index(name) for name in places} == places
    assert COLUMNS[-1] == "true_tstamp"


@FORMS
def test_a_viewed_list_is_one_list_of_impressions(form: Any, tmp_path: Path) -> None:
    report, kept = load(tmp_path, form(fields("list_view")))
    assert (report.records, report.new, report.rejected, report.skipped) == (1, 3, {}, {})
    assert [(event.item, event.position, event.id, event.request) for event in kept] == [
        ("g1", 0, "e1#0", "e1"),
        ("g2", 1, "e1#1", "e1"),
        ("g3", 2, "e1#2", "e1"),
    ]
    assert {(event.kind, event.user, event.time_ms) for event in kept} == {("impression", "ann", TIME_MS)}
    assert kept[1].attributes == {"list": "deals", "category": "Games/Old", "price": 24.5}


@FORMS
@pytest.mark.parametrize(
    ("action", "kind", "value"),
    [
        ("list_click", "click", None),
        ("product_view", "view", None),
        ("add_to_cart", "add_to_cart", 19.0),
        ("remove_from_cart", "remove_from_cart", 19.0),
        ("transaction", "purchase", 19.0),
        ("refund", "refund", 19.0),
    ],
)
def test_actions_on_products(form: Any, action: str, kind: str, value: float | None, tmp_path: Path) -> None:
    _, kept = load(tmp_path, form(fields(action, transaction={"transaction_id": "o1", "revenue": 53.49})))
    assert len(kept) == 3
    assert (kept[0].item, kept[0].kind, kept[0].value, kept[0].request) == ("g1", kind, value, None)
    assert kept[0].position == (0 if action == "list_click" else None)
    if kind in ("purchase", "refund"):
        assert kept[0].attributes == {"order_id": "o1", "quantity": 1, "currency": "EUR"}


@FORMS
def test_an_older_transaction_item(form: Any, tmp_path: Path) -> None:
    event = fields(None, event="transaction_item", ti_orderid="o7", ti_sku="G-1", ti_price=19.5, ti_quantity=2)
    _, (kept,) = load(tmp_path, form(event))
    assert (kept.item, kept.kind, kept.value) == ("G-1", "purchase", 19.5)
    assert kept.attributes == {"order_id": "o7", "quantity": 2}


@FORMS
def test_what_names_no_product_is_skipped(form: Any, tmp_path: Path) -> None:
    report, kept = load(tmp_path, form(fields(None)) + form(fields("checkout_step")))
    assert (kept, report.rejected, report.skipped) == ([], {}, {"no rule": 2})


@FORMS
def test_who_and_when_from_what_is_there(form: Any, tmp_path: Path) -> None:
    event = fields("list_view", user_id="", derived_tstamp="", collector_tstamp="2024-03-01 10:00:00.500")
    _, kept = load(tmp_path, form({name: value for name, value in event.items() if value != ""}))
    assert {(event.user, event.time_ms) for event in kept} == {("d-1", TIME_MS)}


def test_a_repeated_delivery_is_recognised(tmp_path: Path) -> None:
    report, _ = load(tmp_path, tsv(fields("list_view")) + sdk_json(fields("list_view")))
    assert (report.events, report.new, report.duplicates) == (6, 3, 3)


def test_structured_events_need_a_mapping_of_the_team_s_own(tmp_path: Path) -> None:
    log = tmp_path / "enriched.tsv"
    event = fields(None, event="struct", se_category="feed", se_action="thumb-up", se_label="i7", se_value="4.5")
    log.write_bytes(tsv(event) + tsv({**event, "event_id": "e2", "se_category": "video"}))
    mapping = EventMapping.from_toml("""
        name = "feed"
        user = ["user_id", "domain_userid"]
        item = "se_label"
        kind = {path = "se_action", names = {thumb-up = "like"}}
        time = {path = "derived_tstamp", zone = "UTC"}
        value = "se_value"
        id = "event_id"
        [[drop]]
        name = "another part of the app"
        when = {se_category = {none_of = ["feed"]}}
    """)
    assert list(read_events(log, format="snowplow", mapping=mapping)) == [
        Event(user="ann", item="i7", kind="like", time_ms=TIME_MS, value=4.5, id="e1")
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"a\tb\tc", "columns"),
        (tsv(fields("list_view"))[:-1] + b"\t", "columns"),
        (tsv(fields("list_view", contexts="{")), "columns"),
        (tsv(fields("list_view", contexts="[" * 100_000)), "columns"),
        (tsv(fields("list_view", contexts={"data": 5})), "columns"),
        (tsv(fields("list_view", contexts={"data": [{"schema": "no schema", "data": {}}]})), "columns"),
        (tsv(fields("list_view", contexts={"data": [{"schema": schema("product")}]})), "columns"),
        (tsv(fields("list_view", unstruct_event="5")), "columns"),
        (tsv(fields(None, ti_price="dear")), "columns"),
        (tsv(fields(None, ti_price="9" * 400)), "columns"),
        (tsv(fields(None, ti_quantity="1.5")), "columns"),
        (tsv(fields(None, page_title="x")).replace(b"x", b"\xff"), "encoding"),
        (b'{"contexts": 5}', "columns"),
        (json.dumps({PRODUCT: 5, **fields("list_view")}).encode(), "columns"),
        (b'{"event_id": ', "json"),
    ],
)
def test_damaged_lines_are_refused_with_a_reason(line: bytes, reason: str) -> None:
    with pytest.raises(RefusedRecord) as caught:
        parse_enriched(line)
    assert caught.value.reason == reason
    assert caught.value.detail.isprintable()
    assert len(caught.value.detail) < 400


def test_schemas_become_names_as_the_analytics_sdks_make_them() -> None:
    entities = [
        {"schema": "iglu:com.acme-shop/linkClick/jsonschema/2-1-0", "data": {"n": 1}},
        {"schema": "iglu:com.acme-shop/linkClick/jsonschema/2-0-0", "data": {"n": 2}},
    ]
    record = parse_enriched(tsv({"contexts": {"data": entities}, "derived_contexts": {"data": entities[:1]}}))
    assert record == {"contexts_com_acme_shop_link_click_2": [{"n": 1}, {"n": 2}, {"n": 1}]}
