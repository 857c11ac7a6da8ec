"""Where messages may go: http and https only, and no address inside our own networks unless it is named."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from ingest.errors import RLVitalsError

Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
LONGEST_URL = 2048
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Refused(RLVitalsError):
    """The guard does not let a request out."""


class Unresolved(RLVitalsError):
    """The host name has no address at the moment."""


@dataclass(frozen=True)
class Target:
    """A checked address: where to connect and what to ask for there."""

    host: str
    port: int
    tls: bool
    path: str

    @classmethod
    def of(cls, url: str) -> Target:
        """The parts of a webhook's address.

        Raises:
            Refused: it is not one that messages can be posted to. The sentence never repeats the address.
        """
        parts = _split(url)
        if parts.scheme not in ("http", "https"):
            raise Refused("The address must begin with https:// or http://.")
        if not parts.hostname:
            raise Refused("The address names no host.")
        if parts.username is not None or parts.password is not None:
            raise Refused("The address holds a user name or password before the host, which RLVitals does not send.")
        if len(url) > LONGEST_URL or any(ord(c) < 33 or ord(c) > 126 for c in url):
            raise Refused(f"The address must be at most {LONGEST_URL} plain characters without spaces.")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise Refused("The port in the address is no number.") from None
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname, port, parts.scheme == "https", path)


def hint(url: str) -> str:
    """What may be shown of an address: its host and the last four characters."""
    host = _split(url).hostname or "?"
    return f"{host} …{url[-4:]}"


def redacted(text: str, url: str) -> str:
    """Text of a reply or an error without anything of the address but its host."""
    parts = _split(url)
    pieces = {url, parts.path, parts.query, *parts.path.split("/"), *parts.query.replace("=", "&").split("&")}
    for piece in sorted((p for p in pieces if len(p) >= 4), key=len, reverse=True):
        text = text.replace(piece, "[address]")
    return text


def resolve(target: Target, allowed: Sequence[str]) -> str:
    """The one address to connect to. Every address of the name must be allowed: a second one may be a trap.

    Raises:
        Refused: an address is loopback, link-local, private or otherwise inside, and no allowed network holds it.
        Unresolved: the name has no address now.
    """
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError:
        raise Unresolved(f"the name {target.host} does not resolve") from None
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    check(addresses, allowed)
    return addresses[0]


def check(addresses: Iterable[str], allowed: Sequence[str]) -> None:
    """Refuses addresses inside our own networks that no allowed network holds."""
    networks = [ipaddress.ip_network(text, strict=False) for text in allowed]
    for text in addresses:
        address = _plain(ipaddress.ip_address(text))
        inside = not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified
        if inside and not any(address.version == network.version and address in network for network in networks):
            raise Refused(
                f"The host leads to the private address {address}: to send there, start the server with --webhook-allow {address}."
            )


def _plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one carries, where it carries one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise Refused("The address cannot be read: check its host and brackets.") from None
