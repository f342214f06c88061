"""Link shapes into the kernel: the only part that knows traffic control's units, handles and
traps."""
