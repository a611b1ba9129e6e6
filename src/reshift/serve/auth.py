"""Who is asking: a bearer token, a session cookie of the page, a reverse proxy's header, or nobody on loopback.

A web page of somebody else must not act for a user: requests that change something are refused when a browser says that they
come from another site, and without tokens only names of this machine are answered, whatever DNS says.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from reshift.serve.errors import Problem, busy
from reshift.serve.settings import Settings, is_loopback

COOKIE = "reshift_session"
SESSION_SECONDS = 12 * 3600.0
MAX_SESSIONS = 1_000
SAFE = ("GET", "HEAD", "OPTIONS")
LOCAL = "local"  # who asks where no token is needed
BURST_SECONDS = 5.0  # a client may ask for this many seconds' worth at once


class Gate:
    """Lets requests in, or says why not."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tokens = {name: hashlib.sha256(token.encode()).digest() for name, token in settings.tokens.items()}
        self.sessions: OrderedDict[bytes, tuple[str, float]] = OrderedDict()  # hash of the cookie → who, until when
        self.lock = threading.Lock()
        self.buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # who → requests left, when that was

    def enter(self, request: HTTPConnection, method: str) -> str:
        """Who asks; a request that is not allowed raises a problem."""
        self._check_site(request, method)
        who = self._who(request)
        self._count(who)
        return who

    def _who(self, request: HTTPConnection) -> str:
        header = self.settings.proxy_header
        if header is not None:
            if named := request.headers.get(header, "").strip():
                return named[:100]
            raise Problem(401, f"the reverse proxy has not named a user in {header}")
        if not self.tokens:
            return LOCAL
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (name := self.owner(given.strip())):
            return name
        if cookie := request.cookies.get(COOKIE):
            with self.lock:
                known = self.sessions.get(hashlib.sha256(cookie.encode()).digest())
            if known is not None and known[1] > time.monotonic():
                return known[0]
        self._count("(nobody)")  # guessing is slow
        raise Problem(401, "a token is needed: Authorization: Bearer TOKEN", headers={"WWW-Authenticate": "Bearer"})

    def owner(self, token: str) -> str | None:
        """Whose token it is. Every known token is compared, in constant time."""
        given, found = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest(), None
        for name, known in self.tokens.items():
            if hmac.compare_digest(given, known):
                found = name
        return found

    def open_session(self, who: str) -> str:
        """A cookie for a browser that has shown its token."""
        cookie = secrets.token_urlsafe(32)
        with self.lock:
            self.sessions[hashlib.sha256(cookie.encode()).digest()] = who, time.monotonic() + SESSION_SECONDS
            while len(self.sessions) > MAX_SESSIONS:
                self.sessions.popitem(last=False)
        return cookie

    def close_session(self, cookie: str | None) -> None:
        """End a session."""
        with self.lock:
            self.sessions.pop(hashlib.sha256((cookie or "").encode()).digest(), None)

    def _check_site(self, request: HTTPConnection, method: str) -> None:
        host = request.headers.get("host", "")
        if not self.tokens and self.settings.proxy_header is None and not _is_local_name(host):
            raise Problem(421, "without tokens only 127.0.0.1 and localhost are answered; open the page by one of these names")
        if method in SAFE:
            return
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Problem(403, "the request comes from a page of another site")
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise Problem(403, "the request comes from a page of another site")

    def _count(self, who: str) -> None:
        """A bucket per token: it fills at the rate, and a request takes one out."""
        rate = self.settings.limits.rate
        if not rate:
            return
        with self.lock:
            left, then = self.buckets.pop(who, (rate * BURST_SECONDS, 0.0))
            now = time.monotonic()
            left = min(rate * BURST_SECONDS, left + (now - then) * rate) - 1.0
            self.buckets[who] = max(left, -1.0), now
            while len(self.buckets) > 10_000:
                self.buckets.popitem(last=False)
        if left < 0.0:
            raise busy(f"more than {rate:g} requests per second; slow down", 1.0)


def _is_local_name(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name)
