"""The connection to a DICOMweb archive: TLS always verified, time-outs, retries with back-off, and every refusal in one line.

Messages name what was asked for and what the archive answered, never an address with UIDs in it or anything about a patient.
"""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from reshift.errors import UserError
from reshift.pacs.credentials import Credentials

if TYPE_CHECKING:
    import requests

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds between two tries; it doubles
AGAIN = (408, 425, 429, 500, 502, 503, 504)  # answers that may be different next time
Got = TypeVar("Got")


class ArchiveError(UserError):
    """The archive as a whole cannot be used: the run ends, and nothing is marked as failed."""


class CaseError(UserError):
    """The archive refuses one study or series: it is recorded as failed, and the run goes on."""


class RefusedError(CaseError):
    """A refusal that no second try can change."""


class IncompleteError(Exception):
    """An answer ended before it was complete."""


class Options(NamedTuple):
    """How to connect."""

    url: str
    credentials: Credentials = Credentials()
    ca: Path | None = None  # certificates of a private authority
    timeout: float = 30.0  # seconds without a byte
    retries: int = 5


class Archive:
    """One connection, for one thread."""

    def __init__(self, options: Options, stop: Event) -> None:
        self.options = options
        self.stop = stop
        self.session = _session(options)

    def call(self, what: str, work: Callable[[], Got], *, once: bool = False) -> Got:
        """``work()``, tried again where that may help, unless ``once``. What cannot be done is one line."""
        import requests
        from urllib3.exceptions import HTTPError as TransportError

        tries = 1 if once else self.options.retries + 1
        for attempt in range(tries):
            asked = 0.0
            try:
                return work()
            except requests.exceptions.SSLError:
                raise ArchiveError(f"{self._name}: its certificate is not trusted; give its authority with --ca FILE") from None
            except requests.TooManyRedirects:
                raise ArchiveError(f"{self._name}: it redirects elsewhere; give its final address with --dicomweb") from None
            except requests.HTTPError as err:
                problem, asked = self._refusal(what, err.response), _retry_after(err.response)
            except (requests.ConnectionError, requests.Timeout, TransportError) as err:
                problem = f"no answer ({type(err).__name__})"
            except (IncompleteError, requests.exceptions.ChunkedEncodingError):
                problem = "its answer was cut short"
            except (requests.RequestException, ValueError, KeyError):
                problem = "its answer is not what DICOMweb asks for"
            if attempt + 1 < tries:
                self._wait(attempt, asked)
        if not once and problem.startswith("no answer") and not self.alive():
            raise ArchiveError(f"{self._name}: {problem}; run the same command again when it is back")
        raise CaseError(f"{what}: the archive failed {tries} times, {problem}")

    def alive(self) -> bool:
        """Whether the archive answers anything at all: then the fault is with one case."""
        import requests

        try:
            self.get("studies", {"limit": "1"}).close()
        except requests.HTTPError:
            return True
        except requests.RequestException:
            return False
        return True

    def get(self, path: str, params: dict[str, str] | None = None, accept: str = "application/dicom+json") -> "requests.Response":
        """Ask for ``path`` and leave the body to be read in pieces; a refusal raises."""
        answer = self.session.get(
            self.address(path), params=params, stream=True, timeout=self.options.timeout, headers={"Accept": accept}
        )
        answer.raise_for_status()
        return answer

    def address(self, path: str) -> str:
        """The address of a resource."""
        return f"{self.options.url}/{path}"

    @property
    def _name(self) -> str:
        return self.options.url

    def _refusal(self, what: str, answer: "requests.Response | None") -> str:
        """Raise what no second try can change; return the reason of what may be different next time."""
        code = 0 if answer is None else answer.status_code
        if code == 401:
            wrong = "refuses our credentials" if self.options.credentials.any else "asks for credentials"
            raise ArchiveError(f"{self._name}: it {wrong} (401); see docs/pacs.md, section Credentials")
        known = {
            403: "we may not do this (403); ask for the permission",
            404: "it is not in the archive any more (404)",
            410: "it is not in the archive any more (410)",
            413: "it is larger than the archive takes (413); raise its limit",
        }
        if code not in AGAIN:
            raise RefusedError(f"{what}: {known.get(code, f'the archive refused with {code}')}")
        return f"status {code}"

    def _wait(self, attempt: int, asked: float) -> None:
        """Wait before the next try, not in step with others; the end of the run cuts it short."""
        backed_off = min(LONGEST_WAIT, FIRST_WAIT * 2**attempt) * random.uniform(0.5, 1.0)  # nosec B311
        if self.stop.wait(min(LONGEST_WAIT, max(asked, backed_off))):
            raise ArchiveError("stopped")


def dicomweb_client(archive: Archive) -> Any:
    """A client of ``dicomweb_client`` on our session; retries are ours, and its log, which has UIDs, is off."""
    from dicomweb_client.api import DICOMwebClient

    client = DICOMwebClient(archive.options.url, session=archive.session, timeout=archive.options.timeout, permissive_uid=True)
    client.set_http_retry_params(retry=False)
    return client


def _session(options: Options) -> "requests.Session":
    try:
        import requests
        from dicomweb_client import api  # noqa: F401 (its absence is told before anything is done)
    except ImportError:
        raise UserError("reshift pacs needs: pip install 'reshift[pacs]'") from None
    for name in ("dicomweb_client", "retrying", "urllib3"):  # they show addresses, which have UIDs
        logging.getLogger(name).setLevel(logging.CRITICAL)
    session = requests.Session()
    session.max_redirects = 0  # credentials and scans go to the address that was given, nowhere else
    session.auth = _authorise(options.credentials)
    if options.ca is not None:
        if not options.ca.is_file():
            raise UserError(f"{options.ca}: no such file; --ca needs certificates in PEM format")
        session.verify = str(options.ca)
        session.trust_env = False  # REQUESTS_CA_BUNDLE would be used instead
    return session


def _authorise(credentials: Credentials) -> "Callable[[requests.PreparedRequest], requests.PreparedRequest]":
    """Adds our credentials to a request; without any it adds nothing, where requests would look into ~/.netrc."""
    from requests.auth import HTTPBasicAuth

    if credentials.user is not None:
        return HTTPBasicAuth(credentials.user.encode(), (credentials.password or "").encode())

    def add(request: "requests.PreparedRequest") -> "requests.PreparedRequest":
        if credentials.token is not None:
            request.headers["Authorization"] = f"Bearer {credentials.token}"
        return request

    return add


def _retry_after(answer: "requests.Response | None") -> float:
    """The seconds that the archive asks us to wait; a date is not used, because two clocks may differ."""
    text = answer.headers.get("Retry-After", "") if answer is not None else ""
    return float(text) if text.isdigit() else 0.0
