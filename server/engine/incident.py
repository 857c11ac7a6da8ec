"""The words of the engine's answers: an incident and what happened to it. The control store keeps them."""

from server.control.incidents import Incident, IncidentChange, Kind

__all__ = ["Incident", "IncidentChange", "Kind"]
