"""Compression: selectors, value codings, error feedback and the wire format. Pure: tensors in,
bytes out. Importing any module of this package fills the registries of ``base`` with what ships."""

from testbed.compress import builtin as builtin
