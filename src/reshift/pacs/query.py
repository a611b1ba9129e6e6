"""Which studies: the user's filters, and what the archive answers to them (QIDO-RS), page by page."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from reshift.errors import UserError
from reshift.pacs.archive import Archive, ArchiveError, CaseError, dicomweb_client
from reshift.pacs.uids import is_uid

STUDY_KEYS = (
    *("StudyDate", "StudyTime", "AccessionNumber", "PatientID", "PatientName", "StudyID", "StudyDescription"),
    *("ReferringPhysicianName", "ModalitiesInStudy", "InstitutionName"),
)
SERIES_KEYS = ("Modality", "SeriesDescription", "SeriesNumber", "BodyPartExamined", "ProtocolName", "StationName")
# Series of these have nothing to score: reports, segmentations, plans, presentation states, waveforms, documents.
NO_IMAGES = (
    *("SR", "SEG", "PR", "KO", "RTSTRUCT", "RTPLAN", "RTRECORD", "RTDOSE", "REG", "RWV", "FID", "DOC", "ECG", "HD", "EPS"),
    *("AU", "PLAN", "SMR", "TEXTUREMAP", "M3D", "STL"),
)
PAGE = 200  # answers to one question
SPARE = timedelta(days=1)  # clocks and time zones differ; what is known already is not done again
_AGO = re.compile(r"([0-9]{1,5})([hdw])")


class Filters(NamedTuple):
    """What a study and a series have to match."""

    studies: tuple[str, ...] = ()  # UIDs; empty: ask the archive
    study: Mapping[str, str] = MappingProxyType({})
    series: Mapping[str, str] = MappingProxyType({})


class FoundSeries(NamedTuple):
    """A series as the archive lists it."""

    uid: str
    modality: str
    description: str
    instances: int  # 0 where the archive does not say


def parse_query(text: str) -> Filters:
    """``Modality=MR,StudyDate=20260101-``: DICOM keywords; the modality is asked of studies and of series."""
    study, series = dict[str, str](), dict[str, str]()
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise UserError(f"--query: '{part.strip()}' is not KEYWORD=VALUE; e.g. --query \"Modality=MR,StudyDate=20260101-\"")
        if key not in STUDY_KEYS + SERIES_KEYS:
            near = get_close_matches(key, STUDY_KEYS + SERIES_KEYS, 1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(STUDY_KEYS + SERIES_KEYS)}"
            raise UserError(f"--query: '{key}' is not known; {hint}")
        (study if key in STUDY_KEYS else series)[key] = value
    if "Modality" in series:
        study.setdefault("ModalitiesInStudy", series["Modality"])
    return Filters((), study, series)


def parse_since(text: str, last: str | None) -> str:
    """A StudyDate range that begins a day before ``2026-01-31``, ``12h``, ``3d`` or ``2w`` ago, or the ``last`` run."""
    if text == "last":
        if last is None:
            raise UserError("--new-since last: no run has finished in this --out yet; give a date, or 12h, 3d or 2w")
        begin = datetime.fromisoformat(last)
    elif ago := _AGO.fullmatch(text):
        begin = (
            datetime.now(UTC) - int(ago[1]) * {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}[ago[2]]
        )
    else:
        try:
            begin = datetime.fromisoformat(text)
        except ValueError:
            raise UserError(f"--new-since '{text}' is not a date (2026-01-31), a time ago (12h, 3d, 2w) or 'last'") from None
    return f"{begin - SPARE:%Y%m%d}-"


def list_studies(archive: Archive, filters: Filters) -> Iterator[str]:
    """The UIDs of all studies that match."""
    if filters.studies:
        yield from filters.studies
        return
    client = dicomweb_client(archive)
    try:
        for found in _pages(archive, "the list of studies", client.search_for_studies, "0020000D", dict(filters.study)):
            yield _text(found, "0020000D")
    except CaseError as err:  # without the list there is nothing to do
        raise ArchiveError(str(err)) from None


def list_series(archive: Archive, study: str, filters: Filters) -> list[FoundSeries]:
    """The series of a study that match."""
    client = dicomweb_client(archive)

    def search(**options: Any) -> Any:
        return client.search_for_series(
            study_instance_uid=study, fields=["SeriesDescription", "NumberOfSeriesRelatedInstances"], **options
        )

    listed = _pages(archive, "a study", search, "0020000E", dict(filters.series))
    return [
        FoundSeries(_text(one, "0020000E"), _text(one, "00080060"), _text(one, "0008103E"), _count(one, "00201209"))
        for one in listed
    ]


def list_instances(archive: Archive, study: str, series: str) -> dict[str, str]:
    """SOP instance UID → SOP class UID, of every instance in a series."""
    client = dicomweb_client(archive)

    def search(**options: Any) -> Any:
        return client.search_for_instances(study_instance_uid=study, series_instance_uid=series, **options)

    return {_text(one, "00080018"): _text(one, "00080016") for one in _pages(archive, "a series", search, "00080018", {})}


def _pages(
    archive: Archive, what: str, search: Callable[..., Any], uid: str, filters: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Every answer once. A page that brings nothing new is the last, also of an archive that takes no notice of an offset."""
    seen, offset = set[str](), 0
    while True:
        ask = partial(search, search_filters=filters or None, limit=PAGE, offset=offset)
        page = archive.call(what, partial(_checked, ask))
        new = [found for found in page if is_uid(_text(found, uid)) and _text(found, uid) not in seen]
        seen |= {_text(found, uid) for found in new}
        offset += len(page)
        yield from new
        if not new:
            return


def _checked(ask: Callable[[], object]) -> list[dict[str, Any]]:
    """Anything can come from outside."""
    page = ask()
    if not isinstance(page, list) or not all(isinstance(found, dict) for found in page):
        raise ValueError
    return page


def _value(found: dict[str, Any], tag: str) -> Any:
    """The first value of an element in DICOM's JSON model; None where there is none."""
    element = found.get(tag)
    values = element.get("Value") if isinstance(element, dict) else None
    return values[0] if isinstance(values, list) and values else None


def _text(found: dict[str, Any], tag: str) -> str:
    value = _value(found, tag)
    return value if isinstance(value, str) else ""


def _count(found: dict[str, Any], tag: str) -> int:
    value = str(_value(found, tag))
    return int(value) if value.isdigit() and len(value) < 10 else 0
