"""Link states into the kernel: all that knows traffic control's units and traps."""
