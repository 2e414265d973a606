"""The part of Envoy's ext_proc protocol that settling needs, as protobuf messages.

Fields have Envoy's names and numbers; all others are skipped when a message is read, as protobuf has it.
They are declared here since the package with all of Envoy's messages (xds-protos) overwrites files of
opentelemetry-proto.

https://github.com/envoyproxy/envoy/blob/main/api/envoy/service/ext_proc/v3/external_processor.proto
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_PACKAGE = "tidegate.ext_proc"
_KINDS = {
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
}
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "HeaderValue": {"key": (1, "string"), "value": (2, "string"), "raw_value": (3, "bytes")},
    "HeaderMap": {"headers": (1, "repeated HeaderValue")},
    "HttpHeaders": {"headers": (1, "HeaderMap"), "end_of_stream": (3, "bool")},
    "HttpBody": {"body": (1, "bytes"), "end_of_stream": (2, "bool")},
    "HttpTrailers": {"trailers": (1, "HeaderMap")},
    "ProcessingRequest": {
        "request_headers": (2, "oneof HttpHeaders"),
        "response_headers": (3, "oneof HttpHeaders"),
        "request_body": (4, "oneof HttpBody"),
        "response_body": (5, "oneof HttpBody"),
        "request_trailers": (6, "oneof HttpTrailers"),
        "response_trailers": (7, "oneof HttpTrailers"),
        "observability_mode": (10, "bool"),
    },
    "Unchanged": {},  # HeadersResponse, BodyResponse or TrailersResponse: empty, each changes nothing
    "ProcessingResponse": {
        "request_headers": (1, "oneof Unchanged"),
        "response_headers": (2, "oneof Unchanged"),
        "request_body": (3, "oneof Unchanged"),
        "response_body": (4, "oneof Unchanged"),
        "request_trailers": (5, "oneof Unchanged"),
        "response_trailers": (6, "oneof Unchanged"),
    },
}


def _declare() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="tidegate/ext_proc.proto", package=_PACKAGE, syntax="proto3"
    )
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        if any(kind.startswith("oneof ") for _, kind in fields.values()):
            message.oneof_decl.add(name="step")
        for name, (number, kind) in fields.items():
            rule, _, kind = kind.rpartition(" ")
            field = message.field.add(name=name, number=number)
            field.label = field.LABEL_REPEATED if rule == "repeated" else field.LABEL_OPTIONAL
            if rule == "oneof":
                field.oneof_index = 0
            if kind in _KINDS:
                field.type = _KINDS[kind]
            else:
                field.type = field.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
    pool = (
        descriptor_pool.DescriptorPool()
    )  # its own: a process may have Envoy's full messages loaded as well
    pool.Add(file)
    classes: dict[str, Any] = message_factory.GetMessageClassesForFiles([file.name], pool)
    return classes


_CLASSES = _declare()
ProcessingRequest: Any = _CLASSES[f"{_PACKAGE}.ProcessingRequest"]
ProcessingResponse: Any = _CLASSES[f"{_PACKAGE}.ProcessingResponse"]
