"""The paper's public data sets, as downloaded → images and a manifest. One file per data set; the list below needs no numpy.

May import data and system.
"""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from reshift.errors import UserError

if TYPE_CHECKING:
    from reshift.datasets.plan import PlanFunction


class Entry(NamedTuple):
    """One data set: its plan function, what it is and where to get it. docs/datasets.md has the details."""

    location: str
    title: str
    what: str
    download: str
    publisher: str
    licence: str
    size: str
    protocols: tuple[str, ...]  # the first is the default


DATASETS: dict[str, Entry] = {
    "brats2021": Entry(
        "reshift.datasets.brats:plan",
        "BraTS 2021",
        "brain MRI, FLAIR, glioma with voxel labels; 1251 cases",
        "synapse.org, syn27046444 (registration); Kaggle dschettler8845/brats-2021-task1; ready PNGs: Zenodo 12677223",
        "RSNA, ASNR, MICCAI (Baid et al. 2021); PNGs: Cai et al., MedIAnomaly",
        "terms of the BraTS challenge at download; cite the three BraTS papers",
        "1251 cases, five volumes of 240×240×155 voxels each",
        ("subjects",),
    ),
    "ixi": Entry(
        "reshift.datasets.ixi:plan",
        "IXI",
        "brain MRI, T1, healthy adults from three London hospitals; 581 volumes",
        "brain-development.org/ixi-dataset, IXI-T1.tar",
        "Imperial College London",
        "CC BY-SA 3.0",
        "581 volumes, about 256×256×150 voxels",
        ("levels", "middle"),
    ),
    "atlas": Entry(
        "reshift.datasets.atlas:plan",
        "ATLAS v2.0",
        "brain MRI, T1, chronic stroke with lesion masks; 655 volumes with masks, 300 without",
        "fcon_1000.projects.nitrc.org/indi/retro/atlas.html (agreement; the archive has a password)",
        "Liew et al. 2022, INDI",
        "data-use agreement of INDI",
        "955 volumes of 197×233×189 voxels, and 655 masks",
        ("slice95", "subjects"),
    ),
    "ixi-atlas": Entry(
        "reshift.datasets.ixi_atlas:plan",
        "IXI + ATLAS v2.0",
        "the paper's T1 setting: train on IXI, test on ATLAS; --source holds both downloads",
        "see ixi and atlas",
        "see ixi and atlas",
        "CC BY-SA 3.0 and the agreement of INDI",
        "see ixi and atlas",
        ("slice95", "subjects"),
    ),
    "wmh": Entry(
        "reshift.datasets.wmh:plan",
        "WMH challenge 2017",
        "brain MRI, FLAIR, white-matter hyperintensities; 60 training and 110 test cases, five scanners",
        "DataverseNL, doi 10.34894/AECRSD",
        "Kuijf et al., UMC Utrecht",
        "the terms on the dataverse page",
        "170 cases, FLAIR of about 48 to 83 slices and T1",
        ("test", "training", "all"),
    ),
    "busi": Entry(
        "reshift.datasets.busi:plan",
        "BUSI",
        "breast ultrasound; 133 normal, 437 benign, 210 malignant images with masks",
        "scholar.cu.edu.eg/?q=afahmy/pages/dataset, Dataset_BUSI.zip; mirrors on Kaggle",
        "Al-Dhabyani et al. 2020, Cairo University",
        "CC BY 4.0, as the article",
        "780 PNG images of about 500×500 pixels",
        ("low-data",),
    ),
    "vindr": Entry(
        "reshift.datasets.vindr:plan",
        "VinDr-CXR",
        "chest X-rays with boxes by three radiologists; 15,000 training images",
        "physionet.org/content/vindr-cxr, or VinBigData Chest X-ray Abnormalities Detection on Kaggle; PNGs: Zenodo 12677223",
        "Nguyen et al. 2022, Vingroup Big Data Institute",
        "PhysioNet: credentialed access; Kaggle: rules of the competition",
        "15,000 + 3,000 DICOM files of 12 to 16 bits; the split uses 6,000",
        ("medianomaly",),
    ),
}


def get(name: str) -> "PlanFunction":
    """Import the plan function of data set ``name``."""
    if name not in DATASETS:
        from reshift.config import nearest  # imports pydantic, which 'reshift --help' does not need

        raise UserError(f"unknown dataset '{name}'{nearest(name, DATASETS)}; 'reshift datasets' lists them")
    module, _, attribute = DATASETS[name].location.partition(":")
    found: PlanFunction = getattr(import_module(module), attribute)
    return found
