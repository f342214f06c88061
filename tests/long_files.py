"""Files of tests that take long: most of them about a minute each.

Workers that share a lane begin with them: begun last, one of them would hold up the end alone.
"""

LONG = frozenset(
    f"test_{name}.py"
    for name in (
        "run_failures",
        "isolation",
        "exchange_failures",
        "hostile_list",
        "killed_anywhere",
        "bench_link_quick",
        "wheel_on_links",
    )
)
