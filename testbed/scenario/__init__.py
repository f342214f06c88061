"""What a run should be: typed, frozen, pure. No sockets, no root, no clock."""
