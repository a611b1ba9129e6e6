"""Around every request: who asks, headers that keep a browser from doing anything unexpected, and counting."""

from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reshift.serve.auth import Gate
from reshift.serve.errors import Problem, problem_response
from reshift.serve.metrics import Metrics

OPEN = ("/health", "/ready")  # without a token: they say nothing about users
PAGE = ("/", "/docs", "/openapi.json", "/page/", "/api/v1/session")  # the page itself asks for the token
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """ASGI middleware; not Starlette's base class, which would hold streams back."""

    def __init__(self, app: ASGIApp, gate: Gate, metrics: Metrics) -> None:
        self.app, self.gate, self.metrics = app, gate, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, and add headers to its answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method: str = scope["method"]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                self.metrics.request(method, message["status"])
            await send(message)

        try:
            scope.setdefault("state", {})["who"] = self._enter(HTTPConnection(scope), scope["path"], method)
        except Problem as problem:
            self.metrics.refused += problem.status == 429
            await problem_response(problem.status, problem.detail, problem.headers)(scope, receive, answer)
            return
        await self.app(scope, receive, answer)

    def _enter(self, request: HTTPConnection, path: str, method: str) -> str:
        if path in OPEN:
            return "-"
        try:
            return self.gate.enter(request, method)
        except Problem as problem:
            if problem.status == 401 and (path in PAGE or path.startswith("/page/")):
                return "-"
            raise


def who(request: Any) -> str:
    """Who asks, as the guard found out."""
    name: str = request.state.who
    return name
