"""Every setting of the server in one table: command line over environment (RLVITALS_NAME) over default."""

from __future__ import annotations

import difflib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from ingest.errors import SettingsError

PREFIX = "RLVITALS_"
OTHER_VARIABLES = frozenset({"RLVITALS_TOKEN", "RLVITALS_CHROMIUM"})
"""Variables with our prefix that are no setting of the server: the token a follower sends elsewhere, the browser of the tests."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Settings(BaseSettings):
    """The settings of one server. Lists in variables are separated by commas."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, validate_default=True)

    home: Path = Field(default=Path("~/.rlvitals"), description="Folder with both stores, the token and server.json.")
    host: str = Field(default="127.0.0.1", description="Address to listen on; beyond loopback allow_host must name the server.")
    port: int = Field(default=8420, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    allow_host: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Host names under which browsers may reach the server."
    )
    no_token: bool = Field(default=False, description="Ask for no token; on loopback only.")
    token_file: Path | None = Field(
        default=None, description="File that holds the token, for example a mounted secret; default: token in home."
    )
    public_url: str | None = Field(
        default=None, description="Address that links in messages begin with; without it messages have no links."
    )
    webhook_allow: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Private networks (CIDR) that channels may send to."
    )
    watch: Annotated[tuple[Path, ...], NoDecode] = Field(default=(), description="Files and folders to follow.")
    demo: bool = Field(default=False, description="The home is a throw-away one with recorded runs.")

    @field_validator("allow_host", "webhook_allow", "watch", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("home", mode="after")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("allow_host", mode="after")
    @classmethod
    def _host_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if "/" in name or "*" in name or " " in name:
                raise ValueError(f"{name!r} is no host name; give the name that stands in the browser's address, such as rlvitals.example")
        return tuple(name.lower().strip("[]").rstrip(".") for name in value)

    @field_validator("webhook_allow", mode="after")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            try:
                ipaddress.ip_network(text, strict=False)
            except ValueError:
                raise ValueError(f"{text!r} is no network; give an address range such as 10.1.2.0/24") from None
        return value

    @field_validator("public_url", mode="after")
    @classmethod
    def _public(cls, value: str | None) -> str | None:
        if value is None or value == "":
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{value!r} is no address; give one such as https://rlvitals.example")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _reachable_only_with_care(self) -> Settings:
        if is_loopback(self.host):
            return self
        if self.no_token:
            raise ValueError(f"no_token works on loopback only, and host is {self.host}; leave one of the two away")
        if not self.allow_host and not self.public_url:
            raise ValueError(f"host {self.host} is beyond loopback, so allow_host must name the host as browsers will write it")
        return self

    @property
    def telemetry_path(self) -> Path:
        """The DuckDB file."""
        return self.home / "telemetry.duckdb"

    @property
    def control_url(self) -> str:
        """SQLAlchemy address of the control store."""
        return f"sqlite:///{self.home / 'control.sqlite'}"

    @property
    def token_path(self) -> Path:
        """The file that holds the access token."""
        return self.token_file or self.home / "token"

    @property
    def server_json(self) -> Path:
        """The file that says which process owns the home and where it listens."""
        return self.home / "server.json"

    @property
    def host_names(self) -> frozenset[str]:
        """Host names that requests may carry, lower case, without port or brackets."""
        public = urlsplit(self.public_url).hostname if self.public_url else None
        return frozenset({*LOOPBACK_NAMES, *self.allow_host, *([public.lower()] if public else [])})


def is_loopback(host: str) -> bool:
    """Whether a listening address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load_settings(given: Mapping[str, object] | None = None) -> Settings:
    """The settings from the command line's values (None: not given), the environment and the defaults.

    Raises:
        SettingsError: an unknown name, with the nearest known one, or a value that cannot be used.
    """
    values = {name: value for name, value in (given or {}).items() if value is not None}
    for name in values:
        _known(name, name)
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable not in OTHER_VARIABLES:
            _known(variable.removeprefix(PREFIX).lower(), variable)
    try:
        return Settings(**values)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][:1])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise SettingsError(f"Setting {name}: {message}." if name else f"Settings: {message}.") from None


def _known(name: str, spelled: str) -> None:
    if name in Settings.model_fields:
        return
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    hint = f" Did you mean {near[0] if spelled == name else PREFIX + near[0].upper()}?" if near else ""
    raise SettingsError(f"{spelled} is no setting.{hint} `rlvitals settings` lists all of them.")


@dataclass(frozen=True)
class SettingRow:
    """One line of `rlvitals settings`."""

    name: str
    value: str
    origin: str
    help: str


def settings_table(settings: Settings, given: Mapping[str, object] | None = None) -> list[SettingRow]:
    """Every setting with its value and where that came from (command line, environment, default)."""
    rows = []
    for name, info in Settings.model_fields.items():
        value = getattr(settings, name)
        if (given or {}).get(name) is not None:
            origin = "command line"
        else:
            origin = "environment" if PREFIX + name.upper() in os.environ else "default"
        shown = ", ".join(str(part) for part in value) if isinstance(value, tuple) else "" if value is None else str(value)
        rows.append(SettingRow(name, shown, origin, info.description or ""))
    return rows
