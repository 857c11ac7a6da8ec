"""The command line's way to a server that owns the home: what only the owner may do is asked of it over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.errors import RLVitalsError

if TYPE_CHECKING:
    from server.settings import Settings

_POLL_SECONDS = 0.2
_ANSWER_SECONDS = 30.0


class OwnerSilent(RLVitalsError):
    """The process that owns the home does not answer."""


class OwnerRefused(RLVitalsError):
    """The owner answered that it cannot do what was asked."""


@dataclass(frozen=True)
class Owner:
    """A running server: its address, process and the home's token (never printed)."""

    home: Path
    address: str
    pid: int
    token: str | None = field(repr=False)

    def get(self, path: str, seconds: float = _ANSWER_SECONDS) -> Any:
        """The JSON behind a path of the API, waited for so many seconds at most.

        Raises:
            OwnerSilent: no answer.
            OwnerRefused: an answer that is no success.
        """
        return self._ask("GET", path, None, seconds)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that a POST answers; errors as for get."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, seconds: float = _ANSWER_SECONDS) -> Any:
        import httpx

        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            # No proxy of the environment: the owner is on this machine.
            with httpx.Client(base_url=self.address, headers=headers, timeout=seconds, trust_env=False) as client:
                answer = client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise OwnerSilent(
                f"The server with process id {self.pid} owns {self.home} but does not answer at {self.address} ({type(error).__name__}). "
                "Stop that process and try again."
            ) from None
        if answer.is_success:
            return answer.json()
        raise OwnerRefused(f"The server at {self.address} answered {answer.status_code}: {_reason(answer)}")

    def job(self, job_id: str, progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Waits until a job has ended and returns its last state; `progress` sees every state.

        Raises:
            OwnerSilent: the server went away meanwhile; what it had committed stays.
            OwnerRefused: the job failed, with its reason.
        """
        while True:
            state: dict[str, Any] = self.get(f"/api/v1/jobs/{job_id}")
            progress(state)
            if state["state"] == "failed":
                raise OwnerRefused(str(state.get("error") or "The server could not read the paths and gave no reason."))
            if state["state"] == "done":
                return state
            time.sleep(_POLL_SECONDS)

    def backtest(self, order: dict[str, Any], progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Orders a backtest, waits until it has ended and returns its last state; one that is given up here is cancelled there.

        Raises:
            OwnerSilent: the server went away meanwhile.
            OwnerRefused: it was not taken, failed or was cancelled.
        """
        state: dict[str, Any] = self.post("/api/v1/backtests", order)
        place = f"/api/v1/backtests/{state['id']}"
        try:
            while state["state"] in ("waiting", "running"):
                progress(state)
                time.sleep(_POLL_SECONDS)
                state = self.get(place)
        except KeyboardInterrupt:
            self._ask("DELETE", place, None)
            raise
        if state["state"] != "done":
            raise OwnerRefused(str(state.get("error") or f"The backtest was {state['state']}."))
        return state


def owner_of(settings: Settings) -> Owner | None:
    """The server that owns this home, or None when nobody does (a server.json of a dead process counts as nobody)."""
    from server.home import running_server

    info = running_server(settings.home)
    return None if info is None else Owner(settings.home, info.address, info.pid, _token(settings))


def _token(settings: Settings) -> str | None:
    try:
        return settings.token_path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _reason(answer: Any) -> str:
    try:
        body = answer.json()
    except ValueError:
        return str(answer.text)[:200]
    if isinstance(body, dict):
        return str(body.get("error") or body.get("detail") or body)[:300]
    return str(body)[:300]
