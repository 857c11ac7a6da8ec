"""Every answer that is no success is {"error": "a sentence"}."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ingest.errors import RLVitalsError


def add_error_answers(api: FastAPI) -> None:
    """Sets the answers to errors raised below."""
    api.add_exception_handler(RLVitalsError, _sentence)
    api.add_exception_handler(HTTPException, _http)
    api.add_exception_handler(RequestValidationError, _invalid)


async def _sentence(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 422)


async def _http(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, dict(error.headers or {}))


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    """Which fields are wrong and why; never the values, among which may be an address."""
    assert isinstance(error, RequestValidationError)
    places = [(".".join(str(part) for part in item["loc"][1:]) or str(item["loc"][0]), str(item["msg"])) for item in error.errors()]
    return JSONResponse({"error": "; ".join(f"{place}: {message}" for place, message in places) + "."}, 422)
