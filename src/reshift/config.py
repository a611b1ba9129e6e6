"""Settings: frozen pydantic models ↔ TOML. Later layers win: defaults, profile, ``--config`` file, ``--set``, other options."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from reshift.errors import UserError

MAX_DEPTH = 50  # of tables in tables; ours have five
MAX_SHOWN = 100  # characters of a wrong value in a message


class Frozen(BaseModel):
    """Base of every settings table: immutable; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


NUMBER = "number"  # what pydantic adds to the name of a setting that is a number or "auto"
_AUTO = Discriminator(lambda value: "auto" if value == "auto" else NUMBER)
AutoOrNumber = Annotated[
    Annotated[Literal["auto"], Tag("auto")] | Annotated[float, Field(ge=0.0, allow_inf_nan=False), Tag(NUMBER)], _AUTO
]
AutoOrFactor = Annotated[Annotated[Literal["auto"], Tag("auto")] | Annotated[float, Field(gt=0.0, le=4.0), Tag(NUMBER)], _AUTO]
AutoOrShare = Annotated[Annotated[Literal["auto"], Tag("auto")] | Annotated[float, Field(ge=0.0, lt=1.0), Tag(NUMBER)], _AUTO]


class DataConfig(Frozen):
    """How files become the network's input."""

    size: int = Field(128, ge=32, le=1024, description="side of the prepared image, in pixels")
    channels: Literal[1, 3] = Field(1, description="1: colour becomes grey; 3: grey is repeated")
    scale: Literal["auto", "bits", "percentile"] = Field(
        "auto", description="how grey values are scaled to [-1, 1]: by bit depth, by percentiles, or auto"
    )
    level: Literal["auto", "median", "none"] = Field(
        "none", description="median: divide by the organ's median grey value; auto: where the normals say that it helps"
    )
    square: Literal["crop", "pad"] = Field("crop", description="how images become square: cut the longer side, or pad with black")
    min_foreground: float = Field(
        0.1, ge=0.0, le=1.0, description="use slices of a volume with at least this share of the largest slice's foreground"
    )
    holdout: AutoOrShare = Field(
        0.2,
        description="share of training images held out for calibration, by subject; auto: a fifth, up to two for 20 subjects",
    )
    consensus: AutoOrNumber = Field(
        "auto", description="smooth heat-maps along the slices of a stack by a Gaussian with this σ, in slices; 0: off; or auto"
    )
    slice_mm: float = Field(
        0.0, ge=0.0, allow_inf_nan=False,
        description="the slices that consensus counts, in mm; 0: each volume's own. Training sets it from its volumes",
    )  # fmt: skip
    position: Literal["auto", "column", "name"] = Field(
        "auto",
        description="where an image lies in its stack: the manifest's column; name: the last number in the file's name; "
        "auto: the column if there is one, else the name",
    )
    subject: str | None = Field(None, description="plain folders: regex for the file name; its first group is the subject")
    max_pixels: int = Field(
        100_000_000, ge=1024, le=178_956_970,  # Pillow reads no larger ones
        description="largest image, in pixels; a file that claims more is refused unread",
    )  # fmt: skip
    memory_gb: float = Field(4.0, gt=0.0, description="keep prepared images in memory up to this size; stream more from disk")

    @property
    def sigma(self) -> float:
        """The σ of the consensus. Training replaces auto by a number, so that a bundle says what it does."""
        return 0.0 if self.consensus == "auto" else float(self.consensus)


class TrainConfig(Frozen):
    """The training loop. A method's own profile may override these values."""

    batch: int = Field(22, ge=1, description="images per step, over all ranks together")
    lr: float = Field(2e-4, gt=0.0, description="AdamW learning rate")
    weight_decay: float = Field(0.01, ge=0.0, description="AdamW weight decay")
    schedule: Literal["constant", "cosine"] = Field("constant", description="learning rate over each stage; cosine ends at 0")
    warmup: float = Field(0.0, ge=0.0, lt=1.0, description="share of each stage's steps in which the learning rate rises from 0")
    patience: int = Field(
        0, ge=0, description="updates without a fall of the loss on held-out normals by 1 % after which a stage ends; 0: never"
    )
    clip: float = Field(1.0, ge=0.0, description="largest gradient norm; 0: no limit")
    amp: Literal["auto", "bf16", "off"] = Field("auto", description="auto: bf16 on CUDA, float32 on the CPU")
    graphs: bool = Field(True, description="on one GPU, record each kind of step as a CUDA graph and replay it")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, …")
    log_every: int = Field(20, ge=1, description="steps between log lines")
    cache: str = Field("auto", description="folder of shared trained stages; auto: $RESHIFT_CACHE or ~/.cache/reshift; or off")
    checkpoint_seconds: float = Field(60.0, ge=0.0, description="seconds between checkpoints; each stage also ends with one")
    tensorboard: bool = Field(False, description="also log to RUN/tensorboard (extra: log)")


# Settings that do not change what is learned: they may differ on resume and between machines.
RUNTIME_SETTINGS = {
    "data": ("max_pixels",),
    "train": ("cache", "device", "log_every", "checkpoint_seconds", "tensorboard"),
}


class CalibrateConfig(Frozen):
    """Thresholds and p-values, from normal images only."""

    reference: Literal["held-out", "training"] = Field(
        "held-out", description="the normals that set the thresholds; training is the paper's rule and optimistic"
    )
    image_quantile: float = Field(0.95, gt=0.0, lt=1.0, description="share of normal images below the image threshold")
    pixel_quantile: float = Field(0.995, gt=0.0, lt=1.0, description="share of normal pixels below the pixel threshold")
    training_sample: int = Field(1000, ge=1, description="at most so many training images scored for the paper's rule")
    unseen_sample: int = Field(1000, ge=1, description="at most so many training images scored by folds that did not see them")
    features: Literal["auto", "off"] = Field("auto", description="auto: also compare image features (extra: features)")


class Config(Frozen):
    """All settings of a run, stored in the bundle. ``model`` is validated by the method's own settings class."""

    method: str = Field("reshift", description="name of a method, or module:Class")
    seed: int = Field(0, ge=0, description="seed of all random numbers")
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    calibrate: CalibrateConfig = CalibrateConfig()
    model: dict[str, Any] = {}


Model = TypeVar("Model", bound=BaseModel)
Parsed = TypeVar("Parsed")


def parse(cls: type[Model], values: Mapping[str, Any], where: str = "") -> Model:
    """Validate ``values``; the first mistake becomes one line, with the nearest right name."""
    try:
        return cls.model_validate(dict(values))
    except ValidationError as err:
        first = err.errors()[0]
        if not first["loc"]:  # a rule over several settings; its message names them
            raise UserError(f"{where or 'settings'}: {first['msg'].removeprefix('Value error, ')}") from None
        path = [str(part) for part in first["loc"] if part != NUMBER]
        name = ".".join([where, *path] if where else path)
        if first["type"] == "extra_forbidden":
            raise UserError(f"unknown setting '{name}'{_nearest(cls, path, where)}") from None
        shown, message = repr(first["input"]), first["msg"].removeprefix("Value error, ")
        shown = shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"
        raise UserError(f"setting '{name}' = {shown}: {message[:1].lower()}{message[1:]}") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return '; did you mean …?', or all known names if none is near."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(known)}"


def _nearest(cls: type[BaseModel], path: list[str], where: str) -> str:
    table: Any = cls
    for part in path[:-1]:
        table = table.model_fields[part].annotation
        table = next((t for t in get_args(table) if isinstance(t, type)), table)
    names = table.model_fields if isinstance(table, type) and issubclass(table, BaseModel) else {}
    prefix = ".".join([where, *path[:-1]] if where else path[:-1])
    return nearest(f"{prefix}.{path[-1]}" if prefix else path[-1], [f"{prefix}.{n}" if prefix else n for n in names])


def read_toml(path: Path) -> dict[str, Any]:
    """Read a config file."""
    try:
        return _toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file") from None
    except ValueError as err:
        raise UserError(f"{path}: not valid TOML ({err})") from None


def read_json(text: str | bytes) -> Any:
    """Parse JSON that may be damaged or a stranger's. ValueError where it is not valid, or nested too deep for Python's stack."""
    try:
        return _refuse_deep(json.loads(text, parse_constant=_refuse_constant))
    except RecursionError:
        raise ValueError("nested too deep") from None


def _toml(text: str) -> dict[str, Any]:
    try:
        return _refuse_deep(tomllib.loads(text))
    except RecursionError:
        raise ValueError("nested too deep") from None


def _refuse_deep(value: Parsed) -> Parsed:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [item for items in inner for item in items]
        if not level:
            return value
    raise ValueError("nested too deep")


def _refuse_constant(name: str) -> NoReturn:
    """We never write NaN or Infinity; Python's reader would take them."""
    raise ValueError(name)


def parse_assignment(text: str) -> dict[str, Any]:
    """``train.lr=1e-4`` → ``{"train": {"lr": 1e-4}}``. The value is TOML; anything else is a string."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {text}: write it as key=value, e.g. --set train.lr=1e-4")
    try:
        value = _toml(f"v = {raw.strip()}")["v"]
    except ValueError:
        value = raw.strip()
    parts = key.strip().split(".")
    if len(parts) > MAX_DEPTH:
        raise UserError(f"--set {text[:MAX_SHOWN]}…: no setting lies so deep; write it as key=value, e.g. --set train.lr=1e-4")
    for part in reversed(parts):
        value = {part: value}
    return dict(value)


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested tables; later layers win."""
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
            out[key] = merge(out[key], value) if both else value
    return out
