"""The ASGI application, and how it is run."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import uvicorn
from fastapi import FastAPI

from reshift import __version__
from reshift.errors import UserError
from reshift.serve.errors import add_handlers
from reshift.serve.middleware import Guard
from reshift.serve.routes import cases, evaluations, jobs, models, reviews, trainings
from reshift.serve.routes import service as service_routes
from reshift.serve.service import Service
from reshift.serve.settings import Settings
from reshift.serve.store import Store
from reshift.system.lock import locked

ABOUT = "Score medical images with models that have seen healthy images only. For research; not a medical device."


def build(service: Service) -> FastAPI:
    """The application over a service that is not started yet."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(service.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await asyncio.to_thread(service.close)

    app = FastAPI(title="Reshift", version=__version__, description=ABOUT, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    add_handlers(app)
    for group in (jobs, cases, reviews, models, evaluations, trainings, service_routes):
        app.include_router(group.router)
    app.add_middleware(Guard, gate=service.gate, metrics=service.metrics)
    return app


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until a signal; one server per store."""
    settings.check()
    store = Store(settings.store)
    with locked(store.root), _listen(settings) as listener:
        service = Service(settings, store)
        host, port = listener.getsockname()[:2]
        announce(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
        logging.getLogger("reshift.serve").setLevel(logging.INFO)
        config = uvicorn.Config(
            build(service), log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=2**16, lifespan="on", proxy_headers=False,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[listener])


def _listen(settings: Settings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(2048)  # who reads the address may connect; the answer comes when everything is there
    except OSError as err:
        raise UserError(f"--host {settings.host} --port {settings.port}: {err.strerror or err}; choose another port") from None
    return listener
