"""Small copies of the public data sets: their names, folders, formats, orientations and defects, with drawn heads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from nibabel.orientations import axcodes2ornt, inv_ornt_aff, io_orientation, ornt_transform
from numpy.typing import NDArray
from PIL import Image

Point = tuple[float, float, float]


def head(
    seed: int, shape: tuple[int, int, int] = (48, 48, 40), zoom: Point = (5.0, 5.0, 4.0), centre: float = 0.5
) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
    """A brain without skull in RAS order, and its affine: background exactly 0, a bright spot in front on the patient's right."""
    rng = np.random.default_rng(seed)
    x, y, z = positions(shape, zoom, centre)
    inside = (x / 70) ** 2 + (y / 85) ** 2 + (z / 65) ** 2 < 1
    values = 300 + 5 * np.cos(x / 9 + seed) + rng.normal(0, 8, shape)
    values[(x - 30) ** 2 + (y - 45) ** 2 < 15**2] = 500
    return np.where(inside, values, 0).astype(np.int16), np.diag([*zoom, 1.0])


def positions(shape: tuple[int, int, int], zoom: Point, centre: float = 0.5) -> tuple[NDArray[np.float64], ...]:
    """Millimetres to the right, front and top of the brain's centre."""
    steps = [(np.arange(n) - (centre if axis == 2 else 0.5) * (n - 1)) * zoom[axis] for axis, n in enumerate(shape)]
    return tuple(np.meshgrid(*steps, indexing="ij"))


def ball(shape: tuple[int, int, int], zoom: Point, at: Point, radius: float, centre: float = 0.5) -> NDArray[np.bool_]:
    """A lesion: all voxels within ``radius`` millimetres of ``at``."""
    x, y, z = positions(shape, zoom, centre)
    return np.asarray((x - at[0]) ** 2 + (y - at[1]) ** 2 + (z - at[2]) ** 2 < radius**2)


def save_nifti(path: Path, ras: NDArray[Any], affine: NDArray[np.float64], codes: str = "RAS") -> Path:
    """Write an array in RAS order as a file with the axis codes ``codes``."""
    turn = ornt_transform(io_orientation(affine), axcodes2ornt(tuple(codes)))
    stored = nibabel.orientations.apply_orientation(ras, turn)
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(stored, affine @ inv_ornt_aff(turn, ras.shape)), path)
    return path


def lesioned(ras: NDArray[np.int16], where: NDArray[np.bool_], value: int = 800) -> NDArray[np.int16]:
    """The head with a lesion of one grey value."""
    return np.where(where, np.int16(value), ras)


def brats(root: Path, cases: int = 8, gli: bool = False) -> Path:
    """Volumes in LPS order, as BraTS has them; case 0 has a tumour of 12 mm, the others of 25 mm, high up."""
    for i in range(cases):
        ras, affine = head(i)
        core, whole = (ball(ras.shape, (5, 5, 4), (-20, -25, 20), radius) for radius in (12.0, 12.0 if i == 0 else 25.0))
        labels = np.where(core, 1, np.where(whole, 2, 0)).astype(np.int16)
        labels[19, 18, 24:26] = 3 if gli else 4  # the enhancing part, in the middle of it
        name, join, flair = (f"BraTS-GLI-{i // 2:05d}-{i % 2:03d}", "-", "t2f") if gli else (f"BraTS2021_{i:05d}", "_", "flair")
        folder = root / "RSNA_ASNR_MICCAI_BraTS2021_TrainingData_16July2021" / name
        save_nifti(folder / f"{name}{join}{flair}.nii.gz", lesioned(ras, labels > 0), affine, "LPS")
        save_nifti(folder / f"{name}{join}t1.nii.gz", ras, affine, "LPS")
        save_nifti(folder / f"{name}{join}seg.nii.gz", labels, affine, "LPS")
    return root


def write_image(path: Path, seed: int, mode: str = "L", shape: tuple[int, int] = (40, 52), bright: int = 0) -> Path:
    """Speckle that depends on the seed; a lighter copy, with a caliper mark burned in, is still the same image."""
    coarse = np.random.default_rng(seed).integers(20, 200, (24, 24), dtype=np.uint8)
    image = Image.fromarray(coarse).resize(shape[::-1], Image.Resampling.BICUBIC)
    pixels = np.clip(np.asarray(image, dtype=int) + bright, 0, 255).astype(np.uint8)
    if bright:
        pixels[18:20, 10:13] = 255
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def mask(path: Path, box: tuple[int, int, int, int] | None, mode: str = "L", shape: tuple[int, int] = (40, 52)) -> Path:
    """A mask of one box (top, bottom, left, right), or an empty one."""
    plane = np.zeros(shape, dtype=np.uint8)
    if box:
        plane[box[0] : box[1], box[2] : box[3]] = 255
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(plane).convert(mode).save(path)
    return path


def medianomaly_brats(root: Path, train: int = 6, normal: int = 3, tumour: int = 3) -> Path:
    """MedIAnomaly's PNGs; subjects are in the names, and the subject of the first training image is in the test split too."""
    for i in range(train):
        write_image(root / "train" / f"BraTS2021_{i:05d}_flair_60.png", i)
    for i in range(normal):
        write_image(root / "test/normal" / f"BraTS2021_{100 + i:05d}_flair_60.png", 100 + i)
    for i in range(tumour):
        name = f"BraTS2021_{0 if i == 0 else 200 + i:05d}_flair_71.png"
        write_image(root / "test/tumor" / name, 200 + i)
        mask(root / "test/annotation" / name.replace("flair", "seg"), (10, 22, 20, 32))
    return root


def ixi(root: Path, volumes: int = 6) -> Path:
    """Sagittal volumes in one folder, with the neck below the head and another contrast beside them."""
    shape, zoom = (24, 48, 64), (8.0, 5.0, 4.0)
    for i in range(volumes):
        ras, affine = head(i, shape, zoom, centre=0.7)
        x, y, z = positions(shape, zoom, centre=0.7)
        ras = np.where((z < -40) & (x**2 + y**2 < 60**2), np.int16(250), ras)
        name = f"IXI{i + 2:03d}-{('Guys', 'HH', 'IOP')[i % 3]}-{800 + i:04d}"
        save_nifti(root / f"{name}-T1.nii.gz", ras, affine, "PSR")
        save_nifti(root / f"{name}-T2.nii.gz", ras, affine, "PSR")
    return root


def atlas(root: Path, volumes: int = 8, hidden: int = 2) -> Path:
    """MNI-like volumes of more than 95 slices; every other volume has its lesion in slice 95, the others far below it."""
    shape, zoom, centre = (40, 46, 110), (5.0, 5.0, 1.5), 0.8
    for i in range(volumes + hidden):
        ras, affine = head(i, shape, zoom, centre)
        lesion = ball(shape, zoom, (20, -10, 10 if i % 2 else -30), 14.0, centre)
        part, site = ("Training" if i < volumes else "Testing"), f"R{1 + i % 2:03d}"
        name = f"sub-{site.lower()}s{i:03d}"
        stem = root / "ATLAS_2" / part / site / name / "ses-1" / "anat" / f"{name}_ses-1_space-MNI152NLin2009aSym"
        save_nifti(Path(f"{stem}_T1w.nii.gz"), lesioned(ras, lesion, 60), affine)
        if part == "Training":
            save_nifti(Path(f"{stem}_label-L_desc-T1lesion_mask.nii.gz"), lesion.astype(np.uint8), affine)
    return root


def thor_png(root: Path, images: int = 8) -> Path:
    """THOR's slices, with the lists that share their training images."""
    for i in range(images):
        write_image(root / "png_128_sl_95" / f"Atlas_train_{i}.png", i, shape=(48, 48))
        mask(root / "png_128_sl_95" / f"Atlas_train_{i}_mask.png", (10, 22, 10, 22) if i % 2 else None, shape=(48, 48))
    names = [f"./data/ATLAS/png_128_sl_95/Atlas_train_{i}.png" for i in range(images)]
    (root / "splits").mkdir()
    (root / "stray.csv").write_text('"' + "x" * 200_000 + '"\n')  # more than a CSV reader takes as one field
    (root / "splits" / "ixi-t1_atlas_train_2D.csv").write_text("filename\n" + "\n".join(names[::2]) + "\n")
    (root / "splits" / "atlas_test.csv").write_text("filename\n" + "\n".join(names) + "\n")
    return root


WMH_TEST = ("Utrecht/1", "Singapore/51", "Amsterdam/GE3T/101", "Amsterdam/GE1T5/151", "Amsterdam/Philips_VU .PETMR_01./160")


def wmh(root: Path, cases: Sequence[str] = WMH_TEST) -> Path:
    """FLAIR with a lesion (label 1) and other pathology (label 2), in some slices alone; and files of other observers."""
    shape, zoom = (40, 44, 48), (5.5, 5.0, 3.0)
    for i, case in enumerate(("training/Utrecht/0", *(f"test/{case}" for case in cases))):
        ras, affine = head(i, shape, zoom)
        lesion, other = ball(shape, zoom, (-25, -30, 15), 14.0), ball(shape, zoom, (25, -30, -3), 14.0)
        labels = np.where(lesion, 1, np.where(other, 2, 0)).astype(np.uint8)
        folder = root / "dataverse_files" / case
        for stage in ("orig", "pre"):
            save_nifti(folder / stage / "FLAIR.nii.gz", lesioned(ras, labels > 0), affine, "LAS")
            save_nifti(folder / stage / "T1.nii.gz", ras, affine, "LAS")
        save_nifti(folder / "wmh.nii.gz", labels, affine, "LAS")
    extra = root / "dataverse_files/additional_annotations/observer_o3/training/Utrecht/0"
    save_nifti(extra / "result.nii.gz", labels, affine, "LAS")
    return root


def busi(root: Path, normals: int = 12) -> Path:
    """Names with spaces and parentheses, masks of three encodings, two masks of one image, duplicates in and across classes."""
    folder = root / "Dataset_BUSI_with_GT"
    for i in range(1, normals + 1):
        seed = 2 if i in (2, 3) else i  # normal (3) is a lighter copy of normal (2)
        write_image(folder / "normal" / f"normal ({i}).png", seed, "RGB", bright=9 if i == 3 else 0)
        mask(folder / "normal" / f"normal ({i})_mask.png", None, "1")
    for i, mode in ((1, "L"), (10, "1"), (100, "RGB")):
        write_image(folder / "benign" / f"benign ({i}).png", 1000 + i, "RGB")
        mask(folder / "benign" / f"benign ({i})_mask.png", (2, 10, 20, 30) if i == 1 else (20, 32, 16, 32), mode)
    mask(folder / "benign" / "benign (100)_mask_1.png", (2, 10, 30, 40), "L")
    write_image(folder / "malignant" / "malignant (1).png", 1010, "RGB", bright=6)  # the image of benign (10)
    mask(folder / "malignant" / "malignant (1)_mask.png", (20, 32, 16, 32))
    write_image(folder / "malignant" / "malignant (2).png", 5, "RGB", bright=4)  # the image of normal (5)
    mask(folder / "malignant" / "malignant (2)_mask.png", (20, 32, 16, 32))
    write_image(folder / "malignant" / "malignant (3).png", 3000, "RGB")
    mask(folder / "malignant" / "malignant (3)_mask.png", (10, 20, 0, 4))  # the crop removes it
    return root


def image_id(number: int) -> str:
    """32 hexadecimal digits, as VinDr names its images."""
    return f"{number:032x}"


def vindr(root: Path, normals: int = 10, abnormals: int = 4) -> Path:
    """DICOM of 12 bits, every other one MONOCHROME1, and Kaggle's table with three radiologists for each image."""
    rows = ["image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max"]
    for i in range(normals + abnormals):
        write_dicom(root / "train" / f"{image_id(i)}.dicom", i, inverted=bool(i % 2))
        for reader in ("R8", "R9", "R10"):
            shift = 4 * int(reader[1:]) - 32
            box = f"Cardiomegaly,3,{reader},{12 + shift}.5,10.0,{24 + shift},22.0"
            rows.append(f"{image_id(i)},{box if i >= normals else f'No finding,14,{reader},,,,'}")
    (root / "train.csv").write_text("\n".join(rows) + "\n")
    return root


def xray(seed: int) -> NDArray[np.uint16]:
    """12 bits: darker on the left, brighter on the right, with blotches."""
    coarse = np.random.default_rng(seed).integers(0, 60, (8, 8), dtype=np.uint8)
    blotches = np.asarray(Image.fromarray(coarse).resize((64, 48), Image.Resampling.BICUBIC), dtype=np.uint16)
    return np.asarray(blotches + np.linspace(500, 3500, 64)[None, :], dtype=np.uint16)


def write_dicom(path: Path, seed: int, inverted: bool) -> Path:
    """One chest X-ray; the same image as MONOCHROME1 or MONOCHROME2."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = DigitalXRayImageStorageForPresentation
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[str(seed)])
    item = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    item.SOPClassUID, item.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    item.Modality, item.SamplesPerPixel, item.Rows, item.Columns = "DX", 1, 48, 64
    item.BitsAllocated, item.BitsStored, item.HighBit, item.PixelRepresentation = 16, 12, 11, 0
    item.PhotometricInterpretation = "MONOCHROME1" if inverted else "MONOCHROME2"
    scene = xray(seed)
    item.PixelData = (4095 - scene if inverted else scene).astype("<u2").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    item.save_as(path, enforce_file_format=True)
    return path


def medianomaly_vindr(root: Path) -> Path:
    """PNGs with ``data.json``, as MedIAnomaly and DDAD have them."""
    lists: dict[str, Any] = {"train": {"0": [], "unlabeled": {"0": [], "1": []}}, "test": {"0": [], "1": []}}
    for i in range(12):
        name = f"{image_id(i)}.png"
        write_image(root / "images" / name, i, shape=(48, 48))
        (lists["train"]["0"] if i < 8 else lists["test"]["0" if i < 10 else "1"]).append(name)
    (root / "data.json").write_text(json.dumps(lists))
    return root
