"""Findings as a DICOM structured report (TID 1500): the whole case, then one group of measurements per finding."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshift import __version__
from reshift.inference.dicom_export.identity import MAKER, Identity
from reshift.inference.dicom_export.save import making, save
from reshift.inference.findings.measure import Finding

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

SCHEME = "99RESHIFT"  # of what no public vocabulary has a code for
VOLUME, AREA, DIAMETER = ("118565006", "Volume"), ("42798000", "Area"), ("81827009", "Diameter")  # SNOMED CT
MAXIMUM, MEAN = ("56851009", "Maximum"), ("373098007", "Mean")
UNITS = {"mm": ("mm", "mm2", "mm3"), "pixel": ("{pixels}",) * 3}  # UCUM, by dimension


def write_report(
    path: Path,
    sources: "Sequence[Dataset]",
    mask: "Dataset",
    findings: Sequence[Finding],
    case: Mapping[str, Any],
    identity: Identity,
) -> None:
    """Write the report of a case, with its ``score`` and ``p_value`` where ``case`` has them; findings refer to ``mask``."""
    with making(path):
        import highdicom as hd
        from pydicom.sr.codedict import codes

        observer = hd.sr.ObserverContext(
            observer_type=codes.DCM.Device,
            observer_identifying_attributes=hd.sr.DeviceObserverIdentifyingAttributes(
                uid=Identity((), identity.model).uid("device"), name="Reshift", manufacturer_name="Reshift", model_name="reshift"
            ),
        )
        groups = [_case_group(case, len(findings), identity)]
        groups += [_finding_group(finding, mask, sources[0].SeriesInstanceUID, identity) for finding in findings]
        content = hd.sr.MeasurementReport(
            observation_context=hd.sr.ObservationContext(observer_device_context=observer),
            procedure_reported=hd.sr.CodedConcept("363679005", "SCT", "Imaging procedure"),
            imaging_measurements=groups,
        )
        made = hd.sr.ComprehensiveSR(
            evidence=[*sources, mask],
            content=content[0],
            is_complete=True,
            is_final=False,
            is_verified=False,
            **identity.of("report"),
            **MAKER,
        )
    save(path, made, identity)


def _case_group(case: Mapping[str, Any], findings: int, identity: Identity) -> Any:
    """What is known of the whole case; a report without findings would be empty otherwise."""
    import highdicom as hd

    measured = [_measurement(("FINDINGS", "Number of findings"), findings, "1", scheme=SCHEME)]
    for key, meaning in (("score", "Anomaly score"), ("p_value", "p-value among normal images")):
        if case.get(key) is not None:
            measured.append(_measurement((key.upper(), meaning), case[key], "1", scheme=SCHEME))
    return hd.sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=hd.sr.TrackingIdentifier(uid=identity.uid("case"), identifier="Case"), measurements=measured
    )


def _finding_group(finding: Finding, mask: "Dataset", series: str, identity: Identity) -> Any:
    import highdicom as hd
    from pydicom.sr.codedict import codes

    number, unit = finding["finding"], UNITS[finding["unit"]]
    size = (VOLUME, finding["volume"], unit[2]) if finding["volume"] is not None else (AREA, finding["area"], unit[1])
    score = ("SCORE", "Anomaly score")
    measured = [
        _measurement(*size),
        _measurement(DIAMETER, finding["longest_diameter"], unit[0], MAXIMUM),
        _measurement(score, finding["peak"], "1", MAXIMUM, SCHEME),
        _measurement(score, finding["mean"], "1", MEAN, SCHEME),
    ]
    # A segment rather than a frame of it, also of one image: every reader resolves segments.
    return hd.sr.VolumetricROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=hd.sr.TrackingIdentifier(uid=identity.uid("segment", number), identifier=f"Finding {number}"),
        referenced_segment=hd.sr.ReferencedSegment(
            mask.SOPClassUID, mask.SOPInstanceUID, number, source_series=hd.sr.SourceSeriesForSegmentation(series)
        ),
        finding_type=codes.SCT.Lesion,
        finding_category=codes.SCT.MorphologicallyAbnormalStructure,
        algorithm_id=hd.sr.AlgorithmIdentification("Reshift", __version__),
        measurements=measured,
    )


def _measurement(
    name: tuple[str, str], value: float, unit: str, derivation: tuple[str, str] | None = None, scheme: str = "SCT"
) -> Any:
    import highdicom as hd

    concept = hd.sr.CodedConcept
    return hd.sr.Measurement(
        name=concept(name[0], scheme, name[1]),
        value=float(value),
        unit=concept(unit, "UCUM", {"1": "no units", "{pixels}": "pixels"}.get(unit, unit)),
        derivation=concept(derivation[0], "SCT", derivation[1]) if derivation else None,
    )
