"""The API as one ASGI application behind the one door."""

from __future__ import annotations

from fastapi import FastAPI

from server.access import Access
from server.api import ROUTERS
from server.api.errors import add_error_answers
from server.service import Service


def create_api(service: Service) -> FastAPI:
    """The API of a started service; pages may be put on it afterwards.

    `state.service` is the service. `state.script_hashes` is a callable that gives the hashes of the pages' inline
    scripts for the content security policy; whoever adds pages sets it before the first request.
    """
    api = FastAPI(
        title="RLVitals",
        summary="Runs, curves, trajectories, incidents and channels of one RLVitals.",
        description="Every address needs the access token, as `Authorization: Bearer ...` or as the cookie of the pages.",
        version=_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    api.state.service = service
    api.state.script_hashes = tuple
    for router in ROUTERS:
        api.include_router(router)
    add_error_answers(api)
    api.add_middleware(Access, settings=service.settings, token=service.token, script_hashes=lambda: api.state.script_hashes())
    return api


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rlvitals")
    except PackageNotFoundError:
        return "0"
