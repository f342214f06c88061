"""One ``testbed run``: nodes are started, run one algorithm after the other, and judged."""
