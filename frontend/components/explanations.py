"""The explanations of an incident's page, and the choice of a second run to test them with. Looking stores nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import MATCH, Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from frontend.address import address
from frontend.components import incident as parts
from frontend.components.controls import address_state, register_controls, run_choice
from frontend.components.flat import flat
from frontend.components.severity import VERDICTS
from frontend.components.text import line
from ingest.errors import RLVitalsError
from server.control.incidents import Incident
from server.control.incidents import incident as read_incident
from server.engine.second_run import Explained, explain_with, second_run, wants_second_run
from server.engine.switches import how_to_log
from server.queries.runs import RunSummary, run_summaries, run_summary

_LOG = logging.getLogger(__name__)
_QUESTION, _NOTICE, _ROWS = ("second-run-question", "second-run-notice", "second-run-rows")


def explanations(service: Any, incident: Incident, run: RunSummary, baseline: str) -> Component:
    """The stored hypotheses. baseline: id of a second run to test them with, empty: none; its answers follow by a callback."""
    stored = _stored(incident)
    wanted = wants_second_run(stored)
    second, error = _second(service, incident, baseline)
    blocks: list[Any] = [flat(parts.hypotheses_head())]
    if wanted or baseline:
        blocks.append(_choice(service, run, second))
    if error:
        words = [line(error), " The explanations below are without a second run. "]
        blocks.append(html.P([*words, _without(incident, "Take it out of the address")], className="second-run is-wrong", role="alert"))
    elif second is not None and not wanted:
        words = ["No check of these explanations compares with a second run, so ", _name(second.run_id, second.name), " changes nothing. "]
        blocks.append(html.P([*words, _without(incident)], className="second-run", role="status"))
    if second is not None and wanted:
        blocks += _asked(incident, second, len(stored))
    else:
        blocks.append(flat(parts.hypotheses(stored, _how(run))))
    return html.Section(blocks, className="rlv-box hypotheses")


def similar_runs(runs: Sequence[RunSummary], run: RunSummary) -> list[RunSummary]:
    """Other runs that hold a step, the most similar first: same project, framework, algorithm; then by name."""

    def distance(other: RunSummary) -> tuple[bool, bool, bool, str, str]:
        differs = (other.project != run.project, other.framework != run.framework, other.algorithm != run.algorithm)
        return (*differs, other.name.casefold(), other.run_id)

    return sorted((other for other in runs if other.run_id != run.run_id and other.newest_step is not None), key=distance)


def _stored(incident: Incident) -> list[Mapping[str, Any]]:
    return list(incident.body.get("hypotheses") or ())


def _how(run: RunSummary) -> Any:
    return lambda missing: how_to_log(missing, run.framework)


def _second(service: Any, incident: Incident, baseline: str) -> tuple[RunSummary | None, str]:
    """The run that the address names, or why it cannot be compared with."""
    if not baseline:
        return None, ""
    try:
        return second_run(service.store, incident.run_id, baseline), ""
    except RLVitalsError as error:
        return None, str(error)


def _choice(service: Any, run: RunSummary, second: RunSummary | None) -> Component:
    others = similar_runs(run_summaries(service.store), run)
    # A run that cannot be compared with is not among the options, so the control stands on none.
    chosen = second.run_id if second is not None else ""
    state = address_state("incident", {"baseline": chosen} if chosen else {}, {"baseline": ""})
    if not others:
        return html.Div(
            [state, html.P("There is no other run yet that these could be compared with.", className="rlv-facts")], className="second-run"
        )
    hint = html.P("Tests the explanations again, for this page only: nothing is stored.", className="rlv-facts")
    control = run_choice("incident", "baseline", "Compare with a second run", chosen, others, run)
    return html.Div([state, control, None if chosen else hint], className="second-run")


def _name(run_id: str, name: str) -> Component:
    return html.A(html.B(line(name)), href=address("/r/<run>", run=run_id), className="rlv-go")


def _without(incident: Incident, words: str = "Back to the explanations without it") -> Component:
    return html.A(words, href=address("/incidents/<incident>", incident=incident.id), className="rlv-go")


def _asked(incident: Incident, second: RunSummary, count: int) -> list[Component]:
    """What stands there until the answers come: who is compared, and grey rows."""
    key = f"{incident.id}-{second.run_id}"
    words = ["Reading this run and ", _name(second.run_id, second.name), ", then testing the explanations again. "]
    waiting = [*words, "A thousand steps take some seconds. ", _without(incident)]
    grey = html.Div([dmc.Skeleton(height=44, radius="md") for _ in range(count)], className="second-run-waiting", **{"aria-hidden": "true"})
    return [
        dcc.Store(id={"type": _QUESTION, "key": key}, data={"incident": incident.id, "baseline": second.run_id}),
        html.Div(html.P(waiting), id={"type": _NOTICE, "key": key}, className="second-run", role="status"),
        html.Div(grey, id={"type": _ROWS, "key": key}),
    ]


def register_explanations(app: Dash, service: Any) -> None:
    """The choice writes the address; the answers come off the event loop, since both runs are read whole."""
    register_controls(app, "incident")

    # By pattern, so that answers that come late find no place on a page that shows another comparison by then.
    @app.callback(
        Output({"type": _NOTICE, "key": MATCH}, "children"),
        Output({"type": _ROWS, "key": MATCH}, "children"),
        Input({"type": _QUESTION, "key": MATCH}, "data"),
    )
    async def answer(question: Mapping[str, str]) -> Any:
        return await asyncio.to_thread(explained, service, question["incident"], question["baseline"])


def explained(service: Any, incident_id: str, baseline: str) -> tuple[Any, Any]:
    """The notice above the rows, and the rows as the second run leaves them; where that fails the stored ones, and why."""
    with service.control.session(write=False) as session:
        incident = read_incident(session, incident_id)
    run = run_summary(service.store, incident.run_id) if incident is not None else None
    if incident is None or run is None:
        return html.P("This incident is not there any more. Reload the page.", role="alert"), None
    stored = _stored(incident)
    try:
        found = explain_with(service.store, service.control, incident, baseline)
    except Exception as error:
        known = isinstance(error, RLVitalsError)
        if not known:
            _LOG.exception("incident %s could not be explained with the run %s", incident_id, baseline)
        why = str(error) if known else "An error in RLVitals; the server's log has the details."
        words = [line(why), " The explanations below are without a second run. ", _without(incident, "Take it out of the address")]
        return html.P(words, className="is-wrong", role="alert"), flat(parts.hypotheses(stored, _how(run)))
    before = {str(one["id"]): str(one["verdict"]) for one in stored}
    return _notice(incident, found, before), flat(parts.hypotheses(found.hypotheses, _how(run), before))


def _notice(incident: Incident, found: Explained, before: Mapping[str, str]) -> Component:
    """Who is compared and up to where, which verdicts differ by it, and the way back."""
    changed: dict[str, list[str]] = {}
    for one in found.hypotheses:
        if before.get(str(one["id"])) != one["verdict"]:
            changed.setdefault(VERDICTS[one["verdict"]].lower(), []).append(f"{one['title']} ({one['id']})")
    now = " ".join(f"Now {verdict}: {', '.join(titles)}." for verdict, titles in changed.items())
    words = ["With the second run ", _name(found.second.run_id, found.second.name), f", both up to step {found.step:,}. "]
    return html.P([*words, line(now or "No verdict changes."), " The incident and its alerts stay as they are. ", _without(incident)])
