"""The tables of docs/results.md and docs/research.md about the default method."""

from collections.abc import Iterable

from rows import SETS, Row, bounds, fixed, mean, read, select, spread, table


def of_seeds(rows: list[Row], metrics: Iterable[str]) -> list[str]:
    """Mean and deviation over seeds, with the 95 % interval of the first."""
    return [spread(rows, metric) + bounds(rows[0], metric) for metric in metrics]


def named(row: Row) -> str:
    """The set, and the set of the model if that is another."""
    own = row["trained_on"] == row["dataset"]
    return row["dataset"] if own else f"{row['dataset']}, by the {row['trained_on']} model"


def full() -> list[str]:
    """The default method with its full profile, beside PatchCore with the same features and grey scale."""
    lines = []
    for dataset in SETS:
        for label in ("reshift", "PatchCore, efficientnet-lite0", "PatchCore, tinyvit-sam", "PatchCore, dinov2-small"):
            if not (rows := select(read("reshift"), dataset=dataset, row=label)):
                continue
            auc, ap, dice = of_seeds(rows, ("image.auc", "pixel.ap", "pixel.dice"))
            rates = [mean(rows, metric) for metric in ("image.f1", "image.fpr", "image.tpr")]
            lines.append([named(rows[0]), label, str(len(rows)), auc, *rates, ap, dice, mean(rows, "pixel.dice_max")])
    return table("set | method | seeds | AUC | F1 | FPR | TPR | AP_pix | Dice | best possible Dice", lines)


def quick() -> list[str]:
    """The default method in minutes on two CPU cores."""
    lines = []
    for dataset in SETS:
        if not (rows := select(read("reshift"), dataset=dataset, row="reshift, quick")):
            continue
        auc, ap, dice = of_seeds(rows, ("image.auc", "pixel.ap", "pixel.dice"))
        rates = [mean(rows, metric) for metric in ("image.fpr", "image.tpr")]
        lines.append([named(rows[0]), str(len(rows)), auc, *rates, ap, dice, mean(rows, "pixel.dice_max")])
    return table("set | seeds | AUC | FPR | TPR | AP_pix | Dice | best possible Dice", lines)


def left_out() -> list[str]:
    """What every witness of the full profile is worth, in the state before."""
    names = ("featured", "memory", "denoising", "symmetry", "overall")
    return without(read("reshift-before"), {"all": "reshift", **{f"w/o {name}": f"w/o {name}" for name in names}})


def left_out_quick(state: str) -> list[str]:
    """What parts of the quick profile are worth, for the seeds that all of its rows have."""
    names = ("featured", "memory", "denoising", "symmetry", "tail", "overall", "exposure")
    rows, labels = read(state), {"all": "reshift, quick", **{f"w/o {name}": f"quick, w/o {name}" for name in names}}
    seeds = {row["seed"] for row in rows if row["row"] == labels["w/o featured"]}
    return without([row for row in rows if row["seed"] in seeds], labels)


def without(rows: list[Row], labels: dict[str, str]) -> list[str]:
    """AUC / AP_pix / Dice of some rows of the suite, mean over seeds."""
    lines = []
    for shown, label in labels.items():
        line = [shown]
        for dataset in SETS:
            found = select(rows, dataset=dataset, row=label)
            values = [mean(found, metric) for metric in ("image.auc", "pixel.ap", "pixel.dice")]
            line.append(" / ".join(value for value in values if value != "–") + f" ({len(found)})" if found else "–")
        if set(line[1:]) != {"–"}:
            lines.append(line)
    return table(" | ".join(["", *SETS]), lines)


RESEARCH = {  # variant and combination of the witnesses
    ("base", "distance 1"): "**the full profile as it is**",
    ("base-again", "distance 1"): "the same seed once more",
    ("norest", "distance 1"): "without restoration as a source of shifts",
    ("mirror", "distance 1"): "mirror image as second channel",
    ("side288", "distance 1"): "features of the image at 288 pixels",
    ("base-iqr", "distance 1"): "median and quartiles of every image set alike",
    ("wide", "distance 1"): "wider augmentation of grey values",
    ("faint", "distance 1"): "shifts of 25 to 100 % of their strength",
    ("repair", "distance 1"): "the discriminator also learns to undo the shift",
    ("repair", "distance 1; repair 1"): "… and what it would undo is a third witness",
    ("strokes03", "distance 1"): "strokes removed from a step of 0.3 on, not 0.5",
}


def research() -> list[str]:
    """What was tried with the full profile of ``reshift``."""
    rows, lines = read("research"), []
    for (variant, combination), name in RESEARCH.items():
        line = [name]
        for dataset in ("lgg_flair", "busi", "arc_t1_stroke"):
            found = select(rows, trained_on=dataset, variant=variant, combination=combination)
            bank, test = (select(found, judged_on=where) for where in ("bank", dataset))
            both = (" / ".join(fixed(r[0][m]) for m in names) if r else "–" for r, names in
                    ((test, ("auc0.005", "ap", "dice")), (bank, ("ap", "auc0.005"))))  # fmt: skip
            line += both
        lines.append(line)
    sets = " | ".join(f"{dataset} | bank" for dataset in ("lgg_flair", "busi", "arc_t1_stroke"))
    return table(f"what | {sets}", lines)


def weights() -> list[str]:
    """How much the distance should weigh, mean of three sets."""
    rows, lines = select(read("research"), variant="base"), []
    for combination in ("distance 0", "distance 0.5", "distance 1", "distance 2", "distance 3", "distance 4", "distance alone"):
        found = select(rows, combination=combination)
        bank = select(found, judged_on="bank")
        test = [row for row in found if row["judged_on"] == row["trained_on"]]
        lines.append([combination.removeprefix("distance "), mean(bank, "ap"), mean(test, "ap")])
    return table("weight of the distance | bank AP | real AP_pix", lines)
