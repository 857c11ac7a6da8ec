"""Whether the server lives and is ready; open to everyone, and therefore empty."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from server.api.deps import TheService

router = APIRouter(tags=["health"])


@router.get("/healthz", status_code=200, response_class=Response)
async def healthz() -> Response:
    """200 while the process answers."""
    return Response()


@router.get("/readyz", response_class=Response, responses={503: {"description": "A store or a thread does not answer."}})
def readyz(service: TheService) -> Response:
    """200 when both stores answer and the rules run."""
    return Response(status_code=200 if service.ready() else 503)
