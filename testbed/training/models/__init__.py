"""Models: their names are known without torch; torch is loaded when one is built."""

from testbed.training.models.base import register

register()
