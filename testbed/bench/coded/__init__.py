"""``testbed bench coded``: when redundant computation saves time, as in coded synchronous SGD's experiments."""
