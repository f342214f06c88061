"""What of the training is whose: samples that are alike or not, and steps in which only some take part."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from testbed.scenario.link import Model


class Split(Model):
    """How the training set is dealt to workers."""

    name: Literal["iid", "dirichlet"] = Field(
        "iid", description="All draw from the whole set anew every epoch; or labels differ by worker, for good."
    )  # fmt: skip
    alpha: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = Field(
        None,
        description="`dirichlet`: its concentration; small: few labels each, large: all alike.",
    )

    @model_validator(mode="after")
    def _concentration(self) -> Self:
        if (self.name == "dirichlet") != (self.alpha is not None):
            raise ValueError(
                "`dirichlet` and `alpha` belong together: {name: dirichlet, alpha: 0.5}"
            )
        return self


class Participation(Model):
    """How many workers take part in a step: drawn anew for each, all alike likely. The others rest."""

    workers: Annotated[int, Field(ge=1)] | None = Field(None, description="So many of them.")
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="That share of them, rounded; one at least."
    )

    @model_validator(mode="after")
    def _one_number(self) -> Self:
        if (self.workers is None) == (self.share is None):
            raise ValueError("give `workers` or `share`, one of them")
        return self

    def many(self, workers: int) -> int:
        """Of ``workers``."""
        if self.workers is not None:
            return self.workers
        return max(1, round(workers * (self.share or 0.0)))
