"""FastAPI routers, one file a resource."""

from __future__ import annotations

from fastapi import APIRouter

from server.api import backtests, channels, diagnosis, docs, health, incidents, paths, rules, runs, sources, trajectories

ROUTERS: tuple[APIRouter, ...] = (
    runs.router,
    diagnosis.router,
    trajectories.router,
    incidents.router,
    rules.router,
    backtests.router,
    channels.router,
    sources.router,
    paths.router,
    docs.router,
    health.router,
)
