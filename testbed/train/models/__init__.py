"""Models: their names are known without torch; torch is loaded when one is built."""

from testbed.train.models.base import ModelBuilder, build, models, outline, parameter_count
from testbed.train.models.builtin import register as _register

_register()
__all__ = ["ModelBuilder", "build", "models", "outline", "parameter_count"]
