"""The description of the API as one plain page, made here: nothing is loaded from elsewhere and no script runs."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse

router = APIRouter()

_STYLE = (
    ":root{color-scheme:light dark;font:14px/1.5 system-ui,sans-serif}main{max-width:60rem;margin:24px auto;padding:0 24px}"
    "h1{font-size:20px}h2{font-size:16px;margin-top:32px}h3{font-size:14px;margin:20px 0 4px}code{font:13px ui-monospace,monospace}"
    "table{border-collapse:collapse;margin:4px 0 12px}td,th{text-align:left;padding:2px 16px 2px 0;vertical-align:top}p{margin:4px 0}"
)
_METHODS = ("get", "post", "put", "patch", "delete")


@router.get("/api/docs", include_in_schema=False)
def docs(request: Request) -> HTMLResponse:
    """Every address with its parameters and answers."""
    schema = request.app.openapi()
    return HTMLResponse(f"<!doctype html>{''.join(_page(schema))}")


def _page(schema: Mapping[str, Any]) -> Iterator[str]:
    title, version = _text(schema["info"]["title"]), _text(schema["info"]["version"])
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{title} API</title><style>{_STYLE}</style></head><body><main>'
    yield f"<h1>{title} API, version {version}</h1><p>{_text(schema['info'].get('description', ''))}</p>"
    yield '<p>For programs: <a href="/api/openapi.json">openapi.json</a> (OpenAPI 3.1).</p>'
    for path, methods in schema["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield from _operation(path, method, methods[method])
    yield "<h2>Shapes</h2>"
    for name, shape in schema.get("components", {}).get("schemas", {}).items():
        yield from _shape(name, shape)
    yield "</main></body></html>"


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h3><code>{method.upper()} {_text(path)}</code></h3><p>{_text(operation.get('description', ''))}</p><table>"
    for parameter in operation.get("parameters", ()):
        need = "required" if parameter.get("required") else "optional"
        yield _row(parameter["name"], f"{parameter['in']}, {need}", _type(parameter["schema"]), parameter.get("description", ""))
    body = operation.get("requestBody", {}).get("content", {})
    for kind, content in body.items():
        yield _row("body", kind, _type(content["schema"]), "")
    for status, answer in operation.get("responses", {}).items():
        for kind, content in (answer.get("content") or {"": {}}).items():
            yield _row(status, kind, _type(content.get("schema", {})), answer.get("description", ""))
    yield "</table>"


def _shape(name: str, shape: Mapping[str, Any]) -> Iterator[str]:
    yield f'<h3 id="{_text(name)}"><code>{_text(name)}</code></h3><p>{_text(shape.get("description", ""))}</p><table>'
    for field, kind in shape.get("properties", {}).items():
        yield _row(field, "", _type(kind), kind.get("description", ""))
    yield "</table>"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = _text(str(schema["$ref"]).rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return _text(", ".join(str(value) for value in schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return _text(str(schema.get("type", "")))


def _row(name: str, place: str, kind: str, words: str) -> str:
    return f"<tr><td><code>{_text(name)}</code></td><td>{_text(place)}</td><td>{kind}</td><td>{_text(words)}</td></tr>"


def _text(value: str) -> str:
    return html.escape(value)
