"""Draw the tables of the documentation from results/*.csv.

    python tools/tables.py            write them anew
    python tools/tables.py --check    change nothing; exit 1 if one of them differs from results/*.csv

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``.
"""

import re
import sys
from collections.abc import Callable, Iterable
from functools import partial

from claim_tables import claims_ahead, claims_codes, claims_detect, claims_localise
from reshift_tables import full, left_out, left_out_quick, quick, research, weights
from rows import PAPER, ROOT, SETS, Row, fixed, interval, mean, read, select, spread, table

METHODS = {"Reshift": "reshift 0.1.0", "PatchCore": "PatchCore", "DAE": "DAE", "VAE": "VAE", "AE": "AE", "DMD": "dmd",
           "brightness": "brightness", "area": "area"}  # fmt: skip
VARIANTS = {  # with AP_pix and Dice that the paper prints for BraTS2021
    "DMD": ("0.789", "0.763"), "w/o classifier": ("0.728", "0.716"), "w/o discriminative feedback": ("0.729", "0.717"),
    "w/o pre-training": ("0.568", "0.625"), "w/o masking strategy": ("0.552", "0.658"),
    "w/o latent diffusion": ("0.448", "0.479"),
}  # fmt: skip


def best(lines: list[list[str]], columns: Iterable[int]) -> None:
    """Make the highest value of each column bold; what prints the same is marked the same."""
    for column in columns:
        highest = max((line[column][:5] for line in lines if line[column][0].isdigit()), default="")
        for line in lines:
            number, mark, rest = line[column].partition("<sup>")
            if highest and number.startswith(highest):
                line[column] = f"**{number}**{mark}{rest}"


def marker(name: str) -> Callable[[str, str, str], str]:
    """Looks up whether a paired test found a difference."""
    marks = {(row["dataset"], row["row"], row["metric"]): row["mark"] for row in select(read("real-tests"), table=name)}
    signs = {"+": "<sup>+</sup>", "-": "<sup>−</sup>"}
    return lambda dataset, row, metric: signs.get(marks.get((dataset, row, metric), ""), "")


def real() -> list[str]:
    """Every method on every set."""
    rows, lines = read("real"), []
    image, pixel = marker("image"), marker("pixel")
    for dataset in SETS:
        block = []
        for label, shown in METHODS.items():
            if not (seeds := select(rows, dataset=dataset, row=label, setting="")):
                continue
            name = shown if len(seeds) == 3 else f"{shown} ({len(seeds)} seeds)"
            block.append([
                "", name, spread(seeds, "image.auc") + image(dataset, label, "image.auc"), mean(seeds, "image.fpr"),
                mean(seeds, "image.tpr"), *(spread(seeds, m) + pixel(dataset, label, m) for m in ("pixel.ap", "pixel.dice")),
                mean(seeds, "pixel.dice_max"),
            ])  # fmt: skip
        best(block, (2, 5, 6))
        block[0][0] = dataset
        name, auc, ap, dice = PAPER[dataset]
        lines += [*block, ["", f"*paper's DMD on {name}*", f"*{auc}*", "", "", f"*{ap}*", f"*{dice}*", ""]]
    return table("set | method | AUC | FPR at P95 | TPR | AP_pix | Dice | best possible Dice", lines)


def ablation() -> list[str]:
    """The paper's variants of DMD."""
    rows, mark, lines = read("real"), marker("ablation"), []
    wanted = ("image.auc", "pixel.ap", "pixel.dice")
    for label, (ap, dice) in VARIANTS.items():
        lgg, wmh = (select(rows, dataset=dataset, row=label) for dataset in ("lgg_flair", "wmh_flair"))
        lines.append([
            label, f"{int(lgg[0]['steps']):,}", *(spread(lgg, m) + mark("lgg_flair", label, m) for m in wanted),
            f"{ap} / {dice}", *(mean(wmh, m) + mark("wmh_flair", label, m) for m in wanted),
        ])  # fmt: skip
    paper = "paper, BraTS2021: AP_pix / Dice"
    return table(f"variant | updates | lgg_flair: AUC | AP_pix | Dice | {paper} | wmh_flair: AUC | AP_pix | Dice", lines)


def sensitivity() -> list[str]:
    """AP_pix and Dice of DMD against t* and the side of a mask."""
    rows = select(read("real"), dataset="lgg_flair", method="dmd")
    found = []
    for name, shown, default, values in (
        ("t_star", "t*", 500, range(100, 1000, 100)),
        ("mask_side", "mask side", 4, range(2, 9)),
    ):
        seeds = {v: select(rows, **({"row": "DMD"} if v == default else {"setting": f"model.{name}={v}"})) for v in values}
        lines = [
            [shown_as, *(spread(seeds[v], m) for v in values)] for shown_as, m in (("AP_pix", "pixel.ap"), ("Dice", "pixel.dice"))
        ]
        found += [*table(" | ".join([shown, *map(str, values)]), lines), ""]
    return found[:-1]


def thresholds() -> list[str]:
    """DMD with thresholds from training normals."""
    rows = select(read("dmd-paper"), thresholds="training")
    lines = []
    for dataset in ("lgg_flair", "busi", "arc_t1_stroke", "nih_cxr"):
        seeds = select(rows, dataset=dataset)
        lines.append([dataset, *(spread(seeds, m) for m in ("image.f1", "image.fpr", "image.tpr", "pixel.dice"))])
    return table("set | F1 | FPR | TPR | Dice", lines)


def kernels() -> list[str]:
    """Detection before the GPU kernels, with all of them, and after they moved out of the networks."""
    suite, later, moved = read("real"), select(read("dmd-paper"), run="all kernels"), read("restructured")
    lines = []
    for dataset in ("lgg_flair", "busi"):
        versions = [
            ("DMD", "before", select(suite, row="DMD")),
            ("DMD", "with all kernels", later),
            ("DMD", "kernels apart from the networks", select(moved, method="dmd")),
            ("reshift", "before", select(suite, row="Reshift")),
            ("reshift", "kernels apart from the networks", select(moved, method="reshift")),
        ]
        for method, name, rows in versions:
            seeds = select(rows, dataset=dataset)
            values = (spread(seeds, m) for m in ("image.auc", "image.fpr", "pixel.ap", "pixel.dice"))
            lines.append([dataset, method, name, *values])
    return table("set | method | version | AUC | FPR at P95 | AP_pix | Dice", lines)


def fast_parts() -> list[str]:
    """What every fast part is worth: by how much each number gets worse without it."""
    columns = ("stage1_ms", "stage2_ms", "scoring_images_s", "reshift_step_ms", "reshift_scoring_images_s")
    every = read("kernels")
    base, lines = every[0], []
    for row in every:
        cells = [f"{row[name]}{_slower(base, row, name)}" if row[name] else "–" for name in columns]
        lines.append([row["variant"], row["lines"] or "", *cells])
    header = "variant | lines | Stage I, ms | Stage II, ms | scoring, images/s | `reshift` step, ms | `reshift` scoring, images/s"
    return table(header, lines)


def _slower(base: Row, row: Row, name: str) -> str:
    """The loss in per cent, where it is at least one."""
    ratio = float(row[name]) / float(base[name])
    loss = 100.0 * ((1.0 / ratio if name.endswith("images_s") else ratio) - 1.0)
    return f" (+{loss:.0f} %)" if loss >= 1.0 else ""


def text() -> list[str]:
    """What painted words do to normal images of BUSI."""
    lines = [
        [row["about"], *(fixed(row[m]) for m in ("flagged", "flagged_with_text", "auc_of_text", "text_pixels_above_threshold")),
         *(f"{fixed(row[f'{part}.auc'])} / {fixed(row[f'{part}.ap_pix'])}" for part in ("all", "without_marks"))]
        for row in read("text")
    ]  # fmt: skip
    return table(
        "model | flagged | with text | AUC of the text | text pixels above threshold | AUC / AP_pix, all | without marks", lines
    )


def baselines(dataset: str) -> list[str]:
    """Every baseline on one set."""
    lines = []
    for row in sorted(select(read("baselines"), dataset=dataset), key=lambda row: -float(row["pixel.ap"])):
        name = row["method"] + (" †" if row["method"] == "diffuse" else "")
        name += " (`model.unit=false`)" if "unit" in row["settings"] else ""
        shared = row["method"] in {"thor-gaussian", "autoddpm", "diffuse"}
        lines.append([
            name, "(ddpm's)" if shared else row["updates"] or "–", interval(row, "image.auc"), fixed(row["image_by_top.auc"]),
            fixed(row["image.fpr"]), interval(row, "pixel.ap"), fixed(row["pixel.dice"]), fixed(row["pixel.dice_max"]),
            f"{float(row['train_seconds']):.0f} s",
        ])  # fmt: skip
    header = "updates | AUC | AUC, highest 2 % | FPR at P95 | AP_pix | Dice | best possible Dice | training"
    return table(f"{dataset} | {header}", lines)


def competitors() -> list[str]:
    """Baselines trained until their held-out loss is flat, or for their authors' updates, as far as they have been run."""
    lines, before = [], ""
    for row in sorted(read("competitors"), key=lambda row: (SETS.index(row["dataset"]), -float(row["pixel.ap"]))):
        shown, before = row["dataset"] if row["dataset"] != before else "", row["dataset"]
        updates = f"{int(row['steps']):,}" if int(row["steps"]) else "–"
        lines.append([
            shown, row["row"], updates, interval(row, "image.auc"), fixed(row["map_scores.top.auc"]), fixed(row["image.fpr"]),
            interval(row, "pixel.ap"),
            fixed(row["pixel.dice"]), fixed(row["pixel.dice_max"]), f"{float(row['train_seconds']):.0f} s",
        ])  # fmt: skip
    header = "updates | AUC | AUC, highest 2 % | FPR at P95 | AP_pix | Dice | best possible Dice | training"
    return table(f"set | method | {header}", lines)


TABLES: dict[str, Callable[[], list[str]]] = {
    f.__name__.replace("_", "-"): f
    for f in (
        real,
        ablation,
        sensitivity,
        competitors,
        claims_detect,
        claims_localise,
        claims_codes,
        claims_ahead,
        thresholds,
        kernels,
        fast_parts,
        full,
        left_out,
        quick,
        text,
        research,
        weights,
    )
} | {
    "baselines-lgg_flair": partial(baselines, "lgg_flair"),
    "baselines-busi": partial(baselines, "busi"),
    "left-out-quick": partial(left_out_quick, "reshift"),
    "left-out-quick-before": partial(left_out_quick, "reshift-quick-before"),
}


def fill(page: str) -> str:
    """The page with all its tables drawn anew."""
    block = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return block.sub(lambda found: found[1] + "\n".join(TABLES[found[2]]()) + "\n" + found[3], page)


def main() -> None:
    """Write or check the tables of every page."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        old = page.read_text()
        if (new := fill(old)) != old:
            if "--check" in sys.argv:
                sys.exit(f"{page.name}: a table differs from results/; run python tools/tables.py")
            page.write_text(new)


if __name__ == "__main__":
    main()
