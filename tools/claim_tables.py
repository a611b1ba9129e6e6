"""The tables of docs/claims.md: what the paper's method reaches here, beside what the paper prints."""

import statistics
from math import ceil

from rows import PAPER, SETS, Row, interval, mean, read, select, spread, table

EPOCHS, BATCH = 250 + 300, 22  # of the paper and of our runs
STRONGEST = {  # the paper's best baseline on its own data: AUC, then AP_pix and Dice
    "lgg_flair": ("THOR Simplex 0.861", "DAE 0.749 / 0.702"), "busi": ("THOR Simplex 0.899", "Dif-fuse 0.706 / 0.718"),
    "arc_t1_stroke": ("–", "MAD-AD 0.464 / 0.516"), "wmh_flair": ("–", "MAD-AD 0.532 / 0.557"), "nih_cxr": ("MAD-AD 0.813", "–"),
}  # fmt: skip
TRIVIAL = ("brightness", "area")


def full_length(dataset: str) -> Row:
    """DMD with the paper's number of updates."""
    [row] = select(read("claims"), dataset=dataset, row="DMD", setting="")
    return row


def claims_detect() -> list[str]:
    """Does the shift classifier detect? AUC of DMD, of what learns nothing, and what the paper prints."""
    rows, lines = read("real"), []
    for dataset in SETS:
        own = select(rows, dataset=dataset, row="DMD", setting="")
        first = select(read("dmd-paper"), dataset=dataset, method="dmd", run="first", thresholds="held-out")
        nothing = ", ".join(f"{name} {mean(select(rows, dataset=dataset, row=name), 'image.auc')}" for name in TRIVIAL)
        updates = int(own[0]["steps"]) if own else EPOCHS * ceil(int(first[0]["images"]) / BATCH)
        long = interval(full_length(dataset), "image.auc")
        short = f"{spread(own or first, 'image.auc')} ({updates:,})"
        lines.append([dataset, long, short, nothing, PAPER[dataset][1], STRONGEST[dataset][0]])
    header = "set | DMD, AUC, the paper's updates | fewer updates | learns nothing | paper: DMD | paper: best baseline"
    return table(header, lines)


def claims_localise() -> list[str]:
    """Do masks localise? AP_pix and Dice of DMD, of brightness, and what the paper prints."""
    rows, lines = read("real"), []
    for dataset in SETS[:-1]:
        own, plain = (select(rows, dataset=dataset, row=name, setting="") for name in ("DMD", "brightness"))
        each = [" / ".join(mean(found, m) for m in ("pixel.ap", "pixel.dice")) for found in ([full_length(dataset)], own, plain)]
        each[1] += f" ({int(own[0]['steps']):,})"
        _, _, ap, dice = PAPER[dataset]
        lines.append([dataset, *each, f"{ap} / {dice}", STRONGEST[dataset][1]])
    header = (
        "set | DMD, AP_pix / Dice, the paper's updates | fewer updates | brightness | paper: DMD | paper: best baseline by AP_pix"
    )
    return table(header, lines)


def claims_codes() -> list[str]:
    """What the models with the paper's updates are like: thresholds of the paper, codes in use, reconstruction error."""
    lines = []
    for dataset in SETS:
        row = full_length(dataset)
        used = f"{float(row['training.code_usage']):.0%}, {float(row['training.code_perplexity']):.0f}"
        errors = [f"{float(row[f'{part}.reconstruction_error']):.3f}" for part in ("training", "test")]
        lines.append([dataset, f"{int(row['steps']):,}", *(mean([row], m) for m in ("image.f1", "image.fpr", "image.tpr")),
                      mean([row], "map_scores.mean.auc"), used, *errors])  # fmt: skip
    header = (
        "set | updates | F1 | FPR | TPR | AUC of the heat-map's mean | codes in use, perplexity | error, normals | error, test"
    )
    return table(header, lines)


def claims_ahead() -> list[str]:
    """Which of the paper's baselines are ahead of DMD?"""
    lines = []
    for dataset in ("lgg_flair", "busi"):
        own = [full_length(dataset)]
        others = [row for row in select(read("baselines"), dataset=dataset) if row["method"] != "patchcore"]
        for name, column in (("AUC", "image.auc"), ("AP_pix", "pixel.ap")):
            value = statistics.mean(float(row[column]) for row in own)
            order = sorted(((float(row[column]), row["method"]) for row in others), reverse=True)
            ahead = [f"{method} {found:.3f}" for found, method in order if found > value]
            lines.append([dataset, name, spread(own, column), f"{len(ahead)} of {len(others)}", ", ".join(ahead) or "none"])
    return table("set | metric | DMD | baselines ahead | which", lines)
