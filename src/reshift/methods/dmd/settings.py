"""The hyper-parameters of DMD, and which of them decide what each stage learns."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from reshift.config import Frozen

# Multiples of four: the attention of the U-Net has four heads.
Widths = Annotated[tuple[Annotated[int, Field(ge=4, le=4096, multiple_of=4)], ...], Field(min_length=1, max_length=10)]


class DMDSettings(Frozen):
    """The paper's hyper-parameters are the defaults; what it does not state is marked."""

    stage1_epochs: int = Field(250, ge=0)
    stage2_epochs: int = Field(300, ge=0)
    widths: Widths = (32, 64, 128)
    d_z: int = Field(64, ge=1, le=4096)
    codes: int = Field(256, ge=2, le=65_536)
    beta_c: float = Field(0.25, ge=0.0)  # not stated; the value of the VQ-VAE paper
    unet_widths: Widths = (128, 192, 256)  # not stated
    unet_blocks: int = Field(1, ge=1, le=16)  # not stated
    classifier_widths: Widths = (32, 64, 128)
    classifier_hidden: int = Field(128, ge=1, le=65_536)  # not stated
    timesteps: int = Field(1000, ge=1, le=100_000)
    rho_min: float = Field(0.02, gt=0.0, le=1.0)  # not stated; sides 2…8 of 16, around ℓ_M = 4
    rho_max: float = Field(0.25, gt=0.0, le=1.0)
    lambda_cls: float = Field(0.1, ge=0.0)
    mask_side: int = Field(4, ge=1, le=1024)  # ℓ_M: 32×32 = 1024 pixels, inside the paper's best range of 900–1200
    mask_stride: int = Field(2, ge=1)  # s_M
    t_star: int = Field(500, ge=1)
    delta: float = Field(1e-6, gt=0.0)
    inference_seed: int = Field(0, ge=0)
    inference_rows: int = Field(2048, ge=1, le=65_536)  # restorations per pass; bounds memory, not the result
    latent_scale: Literal["unit", "none"] = "unit"  # unit: diffuse latents of unit variance; none: the paper's letter
    codebook: Literal["encoder", "uniform"] = "encoder"  # first codes: outputs of the untrained encoder, or U(-1/K, 1/K)
    restart_after: int = Field(0, ge=0)  # re-seed a code unused for this many steps; 0 = never, as the paper says nothing
    # The five ablations of Table 4.
    classifier: bool = True  # off: the mean of the map is the image score
    feedback: bool = True  # off: L_cls does not reach the denoiser
    pretraining: bool = True  # off: one joint stage of as many updates as the two have together
    masking: bool = True  # off: the whole latent is noised, in training and at inference
    diffusion: bool = True  # off: a masked autoencoder restores
    # A preset: no latent scale, uniform codebook and, unless said otherwise, float32 and no clipping (profile "literal").
    literal: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "DMDSettings":
        if self.rho_min > self.rho_max:
            raise ValueError(f"rho_min {self.rho_min} exceeds rho_max {self.rho_max}")
        if self.mask_stride > self.mask_side:
            raise ValueError(f"mask_stride {self.mask_stride} exceeds mask_side {self.mask_side}: the grid would leave gaps")
        if self.t_star > self.timesteps:
            raise ValueError(f"t_star {self.t_star} exceeds timesteps {self.timesteps}")
        if self.literal and (self.latent_scale, self.codebook) != ("none", "uniform"):
            raise ValueError("literal = true means latent_scale = 'none' and codebook = 'uniform'; leave them out")
        return self


# By name, what training a stage depends on; the rest is of inference alone, and a sweep over it trains once.
_CODES = {"widths", "d_z", "codes", "beta_c", "codebook", "restart_after"}
_MASKS = {"rho_min", "rho_max", "masking", "diffusion"}
STAGE1 = _CODES | _MASKS  # the masks count only without diffusion, where the autoencoder itself fills them
STAGE2 = _MASKS | {
    "unet_widths", "unet_blocks", "classifier_widths", "classifier_hidden", "timesteps", "lambda_cls", "latent_scale",
    "classifier", "feedback", "pretraining",
}  # fmt: skip
