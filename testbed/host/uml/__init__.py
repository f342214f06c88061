"""One command in a Linux of its own, run as an ordinary process: for hosts whose kernel lacks
netem.

    from testbed.host.uml.guest import run
    from testbed.host.uml.inside import GuestOrder
    status = run(GuestOrder(["tc", "qdisc"], writable=[Path("results")]))

Debian's user-mode-linux is a whole kernel that needs no privileges and no hardware. It is given the
host's own file system to look at; what it writes stays in its memory, except in the folders that
the order names. Its one processor is one thread of the host, so its timing is less exact than the
host's own: see ``docs/how-to/guest.md``.
"""
