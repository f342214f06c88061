"""Compression: selectors, value codings, error feedback and the wire format. Pure: tensors in,
bytes out."""

from testbed.compress import builtin as builtin
