"""Who may read and who may write. Pure: headers in, a refusal or nothing out.

Reading is free on this machine and needs the token from elsewhere; writing always needs it, in a header that no other
site can set. The Host header is checked, so a name that somebody points at this machine (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from whet.envs.serve.web import host_of, is_loopback

TOKEN_HEADER = "x-whet-token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# of a page that lies in a run folder: it may run its own scripts, in an origin of its own, and reach nothing
SANDBOX_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refusal(Exception):
    """A request that is not answered, and why in one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass(frozen=True)
class BoardAccess:
    """What the server listens on, and its token."""

    host: str
    port: int
    token: str
    names: Sequence[str] = ()  # of this machine, where others are let in

    @property
    def is_open(self) -> bool:
        """Whether other machines reach the server."""
        return not is_loopback(self.host)

    @property
    def cookie(self) -> str:
        """The cookie's name, which has the port in it: browsers share cookies between the ports of a machine."""
        return f"whet_board_{self.port}"

    def check_host(self, headers: Mapping[str, str]) -> None:
        """A refusal where a request names another machine than this one."""
        host = host_of(headers.get("host", "")).lower()
        if is_loopback(host):
            return
        if self.is_open and (host in {self.host.lower(), *(name.lower() for name in self.names)} or _is_address(host)):
            return
        raise Refusal(403, f"the host {host[:100]!r} is not this board's; use the address that `whet board` printed")

    def check_read(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> None:
        """Raise unless this request may read."""
        self.check_host(headers)
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
            raise Refusal(403, "requests of other sites' pages are refused")
        if self.is_open and not (self.is_token(_sent_token(headers)) or self.is_token(cookies.get(self.cookie, ""))):
            raise Refusal(401, "this board needs its token; open the address that `whet board` printed, with ?token=")

    def check_write(self, headers: Mapping[str, str]) -> None:
        """Raise unless this request may write: the token in a header, and sent by no other site's page."""
        self.check_host(headers)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Refusal(403, "requests of other sites' pages are refused")
        origin = headers.get("origin")
        if origin is not None and _authority(origin) != headers.get("host", "").lower():
            raise Refusal(403, "requests of other sites' pages are refused")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "the content type must be application/json")
        if not self.is_token(_sent_token(headers)):
            raise Refusal(401, "writing needs the token that `whet board` printed, as X-Whet-Token")

    def is_token(self, candidate: str) -> bool:
        """Whether a text is the token of this board."""
        return hmac.compare_digest(_digest(candidate), _digest(self.token))


def _sent_token(headers: Mapping[str, str]) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else headers.get(TOKEN_HEADER, "")


def _authority(origin: str) -> str:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return parts.netloc.lower() if parts.scheme in ("http", "https") else ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
