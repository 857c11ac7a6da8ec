"""Every page, one file each. The address is a page's only state.

A page module has:

- PATH: its address, with `<name>` for a part that varies, for example "/r/<run>/rollouts".
- TITLE: its name in the browser's title, and in the top bar if it belongs there.
- ORDER: its place in the top bar; a page with a varying part or with ORDER 100 or more is not in the top bar.
- layout(service, **address): the page for the parts of the path and the keys of the query string (all text, a key
  may be missing, an unknown key must be accepted). It runs in a worker thread for every address; it may read
  `service.store`, `service.control`; it raises NoSuchPage with a sentence where the address names nothing.
- register(app, service): attaches callbacks; called once for each app. Ids are `<page>-<part>`.

No effect at import. A callback that reads data is `async def` with `asyncio.to_thread`, or carries `websocket=True`.
Live updates: Input("live", "data") holds {"seq", "at", "rows": {run_id: newest step}, "incidents": [...], "sources": [run ids]}.
"""

from __future__ import annotations

from types import ModuleType

from frontend.pages import channels, incident, incidents, overview, rollouts, rule, rules, runs, slices, sources, trajectory

PAGES: tuple[ModuleType, ...] = (
    runs,
    overview,
    slices,
    rollouts,
    trajectory,
    incidents,
    incident,
    rules,
    rule,
    channels,
    sources,
)
