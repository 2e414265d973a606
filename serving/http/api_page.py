"""The page that describes the API, made from its OpenAPI description: no script, nothing from elsewhere.

FastAPI's own page loads its script from a public server: without a way out of the network it stays empty, and
with one, code of others runs where keys are typed.
"""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Schema = Mapping[str, Any]
Field = tuple[str, str, str]
"""Name, with those that it stands within; what it may be; what it means."""

POLICY = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
"""Headers of the page."""
DEEPEST = 5
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
STYLE = """body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code,pre{background:#f3f3f3;padding:.1rem .3rem}pre{overflow:auto;padding:.6rem}
table{border-collapse:collapse}td{vertical-align:top;padding:.15rem 1rem .15rem 0}h2{margin-top:3rem}"""


def page(spec: Schema) -> str:
    """HTML of an OpenAPI description."""
    calls = [
        (method.upper(), path, call)
        for path, methods in spec["paths"].items()
        for method, call in methods.items()
    ]
    contents = "".join(
        f'<li><a href="#{_anchor(method, path)}"><code>{method} {escape(path)}</code></a>'
        for method, path, _ in calls
    )
    info = spec["info"]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])} API</title>'
        f"<style>{STYLE}</style><h1>{escape(info['title'])} API</h1>{_prose(info['description'])}"
        '<p>The same for programs: <a href="openapi.json">OpenAPI</a>. Where the service has keys, send one: '
        f"<code>authorization: Bearer KEY</code>.</p><ul>{contents}</ul>"
        + "".join(_call(spec, method, path, call) for method, path, call in calls)
        + "</html>\n"
    )


def _call(spec: Schema, method: str, path: str, call: Schema) -> str:
    parts = [f'<h2 id="{_anchor(method, path)}"><code>{method} {escape(path)}</code></h2>']
    parts.append(_prose(call.get("description", "")))
    told = [
        (each["name"], f"{each['in']}: {kind(spec, each['schema'])}", each.get("description", ""))
        for each in call.get("parameters", ())
    ]
    if told:
        parts.append(f"<h3>Parameters</h3>{_table(told)}")
    body = call.get("requestBody", {})
    if body:
        parts.append(f"<h3>Body</h3>{_prose(body.get('description', ''))}")
    for media, content in body.get("content", {}).items():
        parts.append(f"<p><code>{escape(media)}</code></p>")
        if "schema" in content:
            parts.append(_table(fields({**spec, **content["schema"]}, content["schema"])))
        if "example" in content:
            parts.append(f"<pre>{escape(json.dumps(content['example'], indent=1))}</pre>")
    parts.append("<h3>Answers</h3>")
    for status, answer in call["responses"].items():
        parts.append(f"<p><code>{status}</code> {escape(answer.get('description', ''))}</p>")
        if status < "400":
            schemas = (content.get("schema") for content in answer.get("content", {}).values())
            parts += [_table(fields(spec, schema)) for schema in schemas if schema]
    return "".join(parts)


def fields(spec: Schema, schema: Schema, within: str = "") -> Iterator[Field]:
    """Fields of an object, those of objects in it after it.

    >>> at = {"properties": {"x_ms": {"type": "number", "minimum": 0, "description": "Where."}}}
    >>> list(fields({"$defs": {"At": at}}, {"properties": {"at": {"$ref": "#/$defs/At"}}}))
    [('at', 'object', ''), ('at.x_ms', 'number >= 0', 'Where.')]
    """
    schema = _resolved(spec, schema)
    if within.count(".") >= DEEPEST:
        return
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        told = kind(spec, each) + (", required" if name in required else "")
        yield within + name, told, _resolved(spec, each).get("description", "")
        for option in each.get("anyOf", (each,)):
            yield from fields(spec, option, f"{within}{name}.")
    for more in ("items", "additionalProperties"):
        if isinstance(schema.get(more), dict):
            yield from fields(spec, schema[more], f"{within}*.")


def kind(spec: Schema, schema: Schema) -> str:
    """What a value may be.

    >>> kind({}, {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "null"}]})
    'integer > 0 or null'
    >>> kind({}, {"enum": ["premium", "batch"]}), kind({}, {"type": "array", "items": {"type": "string"}})
    ('"premium" or "batch"', 'list of string')
    """
    schema = _resolved(spec, schema)
    if "anyOf" in schema:
        return " or ".join(kind(spec, each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " or ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {kind(spec, schema.get('items', {}))}"
    told = [schema.get("type", "object" if "properties" in schema else "anything")]
    told += [f"{sign} {schema[bound]:,.12g}" for bound, sign in BOUNDS.items() if bound in schema]
    if "maxLength" in schema:
        told.append(f"of up to {schema['maxLength']} characters")
    return " ".join(told)


def _resolved(spec: Schema, schema: Schema) -> Schema:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Any = spec
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return {**found, **{name: value for name, value in schema.items() if name != "$ref"}}


def _anchor(method: str, path: str) -> str:
    return escape(f"{method}{path}".replace("/", "-").lower())


def _prose(text: str) -> str:
    return "".join(f"<p>{escape(part)}</p>" for part in text.split("\n\n") if part)


def _table(rows: Any) -> str:
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{escape(told)}<td>{escape(meaning)}"
        for name, told, meaning in rows
    )
    return f"<table>{cells}</table>" if cells else ""
