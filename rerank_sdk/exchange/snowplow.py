"""Snowplow's enriched events: 131 tab-separated columns, or JSON, as one form of record.

The record has the names of the JSON that Snowplow's analytics SDKs make: the entities of a schema are a list under
``contexts_<vendor>_<name>_<model>``, and the self-describing event is an object under
``unstruct_event_<vendor>_<name>_<model>``.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rerank_sdk.exchange.lines import parse_object
from rerank_sdk.exchange.record import RefusedRecord, shown

_COLUMN_NAMES = """
app_id platform etl_tstamp collector_tstamp dvce_created_tstamp event event_id txn_id name_tracker v_tracker
v_collector v_etl user_id user_ipaddress user_fingerprint domain_userid domain_sessionidx network_userid geo_country
geo_region geo_city geo_zipcode geo_latitude geo_longitude geo_region_name ip_isp ip_organization ip_domain
ip_netspeed page_url page_title page_referrer page_urlscheme page_urlhost page_urlport page_urlpath page_urlquery
page_urlfragment refr_urlscheme refr_urlhost refr_urlport refr_urlpath refr_urlquery refr_urlfragment refr_medium
refr_source refr_term mkt_medium mkt_source mkt_term mkt_content mkt_campaign contexts se_category se_action
se_label se_property se_value unstruct_event tr_orderid tr_affiliation tr_total tr_tax tr_shipping tr_city tr_state
tr_country ti_orderid ti_sku ti_name ti_category ti_price ti_quantity pp_xoffset_min pp_xoffset_max pp_yoffset_min
pp_yoffset_max useragent br_name br_family br_version br_type br_renderengine br_lang br_features_pdf
br_features_flash br_features_java br_features_director br_features_quicktime br_features_realplayer
br_features_windowsmedia br_features_gears br_features_silverlight br_cookies br_colordepth br_viewwidth
br_viewheight os_name os_family os_manufacturer os_timezone dvce_type dvce_ismobile dvce_screenwidth
dvce_screenheight doc_charset doc_width doc_height tr_currency tr_total_base tr_tax_base tr_shipping_base
ti_currency ti_price_base base_currency geo_timezone mkt_clickid mkt_network etl_tags dvce_sent_tstamp
refr_domain_userid refr_device_tstamp derived_contexts domain_sessionid derived_tstamp event_vendor event_name
event_format event_version event_fingerprint true_tstamp
"""
COLUMNS: tuple[str, ...] = tuple(_COLUMN_NAMES.split())
"""Columns of an enriched event, in the order of the TSV."""

_FLOATS_NAMES = """
geo_latitude geo_longitude tr_total tr_tax tr_shipping ti_price tr_total_base tr_tax_base tr_shipping_base
ti_price_base se_value
"""
_FLOATS = frozenset(_FLOATS_NAMES.split())
_INTEGERS_NAMES = """
txn_id domain_sessionidx page_urlport refr_urlport ti_quantity pp_xoffset_min pp_xoffset_max pp_yoffset_min
pp_yoffset_max br_viewwidth br_viewheight dvce_screenwidth dvce_screenheight doc_width doc_height
"""
_INTEGERS = frozenset(_INTEGERS_NAMES.split())
_SELF_DESCRIBING = ("contexts", "derived_contexts", "unstruct_event")
_schema_parts = re.compile(r"iglu:([A-Za-z0-9_.-]+)/([A-Za-z0-9_-]+)/[^/]+/([0-9]+)-.*", re.DOTALL).fullmatch
_is_float = re.compile(r"[+-]?[0-9]{1,300}(?:\.[0-9]{0,300})?(?:[eE][+-]?[0-9]{1,3})?").fullmatch
_is_integer = re.compile(r"[+-]?[0-9]{1,18}").fullmatch


def parse_enriched(line: bytes) -> dict[str, Any]:
    """Read one enriched event, TSV or JSON.

    Raises
    ------
    RefusedRecord
        It is neither, has another number of columns, or an entity is not self-describing.

    Examples
    --------
    >>> record = parse_enriched(b'{"event_id": "e", "contexts": {"schema": "iglu:x/contexts/jsonschema/1-0-0", '
    ...     b'"data": [{"schema": "iglu:com.acme/item/jsonschema/1-0-0", "data": {"id": 7}}]}}')
    >>> record["contexts_com_acme_item_1"]
    [{'id': 7}]
    """
    # Tabs stay: the first columns of a TSV line may be empty, and the first that is not may hold JSON.
    record = parse_object(line) if line.lstrip(b" \xef\xbb\xbf")[:1] == b"{" else _columns_of(line)
    for name in _SELF_DESCRIBING:
        if name in record:
            _unfold(record, name, record.pop(name))
    return record


def _columns_of(line: bytes) -> dict[str, Any]:
    try:
        values = line.decode("utf-8").rstrip("\r\n").split("\t")
    except UnicodeDecodeError as error:
        raise RefusedRecord("encoding", f"the line is no UTF-8: {error.reason} at byte {error.start}") from None
    if len(values) != len(COLUMNS):
        raise RefusedRecord(
            "columns",
            f"expected the {len(COLUMNS)} columns of an enriched event, got {len(values)}: is the line whole?",
        )
    record: dict[str, Any] = {name: value for name, value in zip(COLUMNS, values, strict=True) if value}
    for name in record.keys() & _FLOATS:
        if not _is_float(record[name]):
            raise RefusedRecord("columns", f"expected a number in {name}, got {shown(record[name])}")
        record[name] = float(record[name])
    for name in record.keys() & _INTEGERS:
        if not _is_integer(record[name]):
            raise RefusedRecord("columns", f"expected a whole number in {name}, got {shown(record[name])}")
        record[name] = int(record[name])
    return record


def _unfold(record: dict[str, Any], column: str, value: Any) -> None:
    """Put what a self-describing column holds under the names of its schemas."""
    if type(value) is str:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise RefusedRecord("columns", f"expected JSON in {column}, got {shown(value)}") from None
    if value is None:
        return
    data = value.get("data") if type(value) is dict else None
    if column == "unstruct_event":
        name, content = _named("unstruct_event", column, data)
        record[name] = content
        return
    if type(data) is not list:
        raise RefusedRecord("columns", f"expected an object with a list `data` in {column}, got {shown(value)}")
    for entity in data:
        name, content = _named("contexts", column, entity)
        known = record.setdefault(name, [])
        if type(known) is not list:
            raise RefusedRecord("columns", f"expected a list in {name}, got {shown(known)}")
        known.append(content)


def _named(prefix: str, column: str, entity: Any) -> tuple[str, Any]:
    schema = entity.get("schema") if type(entity) is dict else None
    found = _schema_parts(schema) if type(schema) is str else None
    if found is None or "data" not in entity:
        raise RefusedRecord("columns", f"expected an object with `schema` and `data` in {column}, got {shown(entity)}")
    vendor, name, model = found.groups()
    snake = re.sub(r"([^A-Z_])([A-Z])", r"\1_\2", name)
    return re.sub(r"[.-]", "_", f"{prefix}_{vendor}_{snake}_{model}").lower(), entity["data"]
