"""Texts of protocol buffers that others wrote."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rerank_engine.errors import ConversionError


def check_texts(message: Any, label: str, leave_out: Collection[str] = ()) -> None:
    r"""Refuse texts that are no UTF-8: old schemas take them, and protobuf hands them out as bytes.

    Parameters
    ----------
    message
        A message of ``google.protobuf``; those inside are checked too.
    label
        What the message was read from, for the error.
    leave_out
        Names of message types that hold no texts, only numbers.

    Raises
    ------
    ConversionError
        Names the field.

    Examples
    --------
    >>> import onnx
    >>> check_texts(onnx.NodeProto.FromString(b"\x0a\x01\xff"), "model.onnx")
    Traceback (most recent call last):
    ...
    rerank_engine.errors.ConversionError: model.onnx: field onnx.NodeProto.input holds b'\xff', which is no UTF-8 text
    """
    for field, value in message.ListFields():
        if field.message_type is not None:
            if field.message_type.name not in leave_out:
                for entry in value if isinstance(value, Sequence) else (value,):
                    check_texts(entry, label, leave_out)
        elif field.type == field.TYPE_STRING:
            for entry in (value,) if isinstance(value, str | bytes) else value:
                if not isinstance(entry, str):
                    raise ConversionError(
                        f"{label}: field {field.full_name} holds {entry[:40]!r}, which is no UTF-8 text"
                    )
