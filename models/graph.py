"""What an ONNX graph would reach for beyond itself: other operators than the standard's, other files.

The few fields that matter are read from the protobuf bytes (https://github.com/onnx/onnx, onnx/onnx.proto3),
so that serving needs no `onnx` package. A graph is data: a custom operator would run code that somebody
installed, and external data would read whatever file the graph names.
"""

from collections.abc import Iterator
from typing import Literal

STANDARD = ("", "ai.onnx", "ai.onnx.ml")
"""Operator domains of the ONNX standard."""
MAX_DEPTH = 16
"""Graphs within graphs, such as the branches of If; the forecaster has none."""

Kind = Literal["model", "graph", "node", "attribute", "tensor", "sparse", "function"]

_CHILDREN: dict[Kind, dict[int, Kind]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""By message: number of a field, and the message that it holds."""
_OP_TYPE, _DOMAIN = 4, 7
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14


def objection(model: bytes) -> str | None:
    """Why a graph must not be loaded, the first reason found; None where it keeps to itself.

    Raises:
        ValueError: when the bytes are no protobuf message.

    >>> node = bytes([0x22, 4]) + b"Evil" + bytes([0x3A, 7]) + b"mine.io"  # op_type, domain
    >>> graph = bytes([0x0A, len(node)]) + node
    >>> objection(bytes([0x3A, len(graph)]) + graph)
    "it has the operator 'Evil' of 'mine.io', which is none of the ONNX standard"

    """
    return next(_objections("model", memoryview(model), 0), None)


def _objections(kind: Kind, message: memoryview, depth: int) -> Iterator[str]:
    if depth > 3 * MAX_DEPTH + 2:  # each is a node's attribute's graph
        yield f"it has graphs within graphs, more than {MAX_DEPTH} deep"
        return
    op_type, domain = "", ""
    for number, value in _fields(message):
        if kind == "tensor" and number in (_EXTERNAL_DATA, _DATA_LOCATION) and value != 0:
            yield "it keeps numbers in another file; a bundle's model has to hold all of them"
        if isinstance(value, int):
            continue
        if number in _CHILDREN[kind]:
            yield from _objections(_CHILDREN[kind][number], value, depth + 1)
        elif kind == "node" and number == _OP_TYPE:
            op_type = bytes(value).decode(errors="replace")
        elif kind == "node" and number == _DOMAIN:
            domain = bytes(value).decode(errors="replace")
    if domain not in STANDARD:
        yield f"it has the operator {op_type[:64]!r} of {domain[:64]!r}, which is none of the ONNX standard"


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field of a protobuf message: https://protobuf.dev/programming-guides/encoding."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire_type == 2:
            length, at = _varint(message, at)
        elif wire_type in (1, 5):
            length = 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"byte {at} starts a field of unknown type {wire_type}")
        if length > len(message) - at:
            raise ValueError(f"it ends within a field of {length} bytes")
        yield number, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at + place >= len(message):
            raise ValueError("it ends within a number")
        byte = message[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError(f"byte {at} starts a number that is too long")
