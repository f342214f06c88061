"""Models: their names are known without torch; torch is loaded when one is built."""

from testbed.training.models.base import ModelBuilder, build, models, outline, parameter_count
from testbed.training.models.base import register as _register

__all__ = ["ModelBuilder", "build", "models", "outline", "parameter_count"]


_register()
