"""Benchmarks: how exact and how costly the links are, against other ways to make them in the same
run.

Virtual time against real links: the same scenarios on both, and how far their step times are apart.

``testbed bench coded``: when redundant computation saves time, as in coded synchronous SGD's
experiments.

What compression costs and how well it hits its mark, against what anybody has anyway.

How fast gradients are exchanged: rounds of every exchange, against other libraries and the bare
link.

``testbed bench overlap``: an overlapped step against the bound of its computation and its links.

How controllers answer when their link changes, and how far they stay behind the best that could be
done.

How a step grows with the number of workers, and what simulating it takes.
"""
