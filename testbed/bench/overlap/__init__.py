"""``testbed bench overlap``: an overlapped step against the bound of its computation and its links."""
