"""The description of a run: typed, frozen, pure. No sockets, no root, no clock."""
