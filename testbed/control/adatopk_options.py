"""Options of AdaTopK: the constants of its Table 2, and a choice for every point its text leaves open."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from testbed.control.options import Density, Options, Share, check_initial

Weight = Annotated[float, Field(ge=0.0)]


class AdaTopKOptions(Options):
    """Defaults are the paper's; where it is silent or contradicts itself, the description says so."""

    alpha: Weight = Field(3.0, description="Weight of accuracy in the comparison (α).")
    beta: Weight = Field(2.0, description="Weight of delay in the comparison (β).")
    window: Annotated[int, Field(ge=1, le=100_000)] = Field(
        18, description="Differences looked at (w); w + 1 samples are kept."
    )
    k_max: Density = Field(0.29, description="Largest density. The paper has 0.29 or 0.26.")
    k_min: Density = Field(0.001, description="Smallest density.")
    rho: Share = Field(
        0.78, description="Probability of holding k when trend and comparison disagree (ρ)."
    )
    p_inc: Share | None = Field(
        None,
        description="The same for raising alone. None: rho, as the text has it. Table 2 also lists ε = 0.9.",
    )
    p_dec: Share | None = Field(None, description="The same for lowering alone. None: rho.")
    m_inc: Share = Field(0.98, description="Weight of the old k when raising.")
    m_dec: Share = Field(0.97, description="Weight of the old k when lowering.")
    k_dec: Share | Literal["k_min", "k_max"] = Field(
        "k_min",
        description="The paper's k_dec, which it never defines: a density, or one of the limits.",
    )
    initial_k: Density | None = Field(
        None, description="Density until the window is full; not in the paper. None: k_max."
    )
    decrease: Literal["minus", "toward_min"] = Field(
        "minus",
        description="minus: m_dec·k − (1−m_dec)·k_dec, as printed. toward_min: m_dec·k + (1−m_dec)·k_min.",
    )
    trend: Literal["telescoped", "slope"] = Field(
        "telescoped",
        description="telescoped: the sum of differences as printed, which is newest − oldest. "
        "slope: least squares over the window.",
    )
    accuracy: Literal["unsigned", "signed"] = Field(
        "unsigned",
        description="unsigned: |newest difference|, as printed. signed: falling accuracy counts against raising.",
    )
    delay: Literal["seconds", "per_byte"] = Field(
        "seconds",
        description="seconds: as printed. per_byte: delay ÷ bytes sent, free of k's own influence.",
    )
    zero_denominator: Literal["hold", "raise"] = Field(
        "hold",
        description="A ratio with nothing under the line is 0. When both are, k holds, or (≥ taken "
        "literally) is raised.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.k_min > self.k_max:
            raise ValueError(f"k_min {self.k_min} is above k_max {self.k_max}")
        check_initial(self.first_k, self.k_min, self.k_max)
        return self

    @property
    def first_k(self) -> float:
        """Density until the window is full."""
        return self.k_max if self.initial_k is None else self.initial_k

    @property
    def hold_raising(self) -> float:
        """Probability of not raising although accuracy asks for it, while delay grows."""
        return self.rho if self.p_inc is None else self.p_inc

    @property
    def hold_lowering(self) -> float:
        """Probability of not lowering although delay asks for it, while delay shrinks."""
        return self.rho if self.p_dec is None else self.p_dec

    @property
    def decrement(self) -> float:
        """k_dec as a number."""
        if isinstance(self.k_dec, str):
            return self.k_min if self.k_dec == "k_min" else self.k_max
        return self.k_dec
