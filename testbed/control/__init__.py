"""How much is sent: rules that map what a worker observed to the next density. Pure, seeded, serialisable."""

from testbed.control import builtin as builtin
