"""Plugins for what pyroute2 0.9 lacks of traffic control: ``bfifo``, all of netem's options, HTB
without rate tables, packets counted in 64 bits.

They are like those in ``pyroute2.netlink.rtnl.tcmsg``: importing this module registers them.
"""

from __future__ import annotations

from types import SimpleNamespace

from pyroute2.netlink import NLA_F_NESTED, nla
from pyroute2.netlink.rtnl.tcmsg import cls_u32, common, common_act, plugins, sched_htb, sched_netem


class Statistics(common.stats2):
    """``TCA_STATS2``, to its last attribute; without what single disciplines tell."""

    nla_map = (
        *common.stats2.nla_map,
        ("TCA_STATS_RATE_EST64", "hex"),
        ("TCA_STATS_PAD", "hex"),
        ("TCA_STATS_BASIC_HW", "basic"),
        ("TCA_STATS_PKT64", "uint64"),
    )


class ByteQueue(nla):
    """``TCA_OPTIONS`` of a ``bfifo``, bytes."""

    fields = (("limit", "I"),)


class HtbOptions(sched_htb.options):
    """``TCA_OPTIONS`` of HTB, without rate tables."""

    nla_flags = NLA_F_NESTED

    class htb_parms(nla):  # noqa: N801 - pyroute2 looks it up by this name
        """A class's rate and ceiling, bytes a second, and its bursts, ticks of 64 ns."""

        fields = sched_htb.options.htb_parms.fields


class NetemOptions(sched_netem.options):
    """``TCA_OPTIONS`` of netem, with what it has learned since Linux 3."""

    nla_map = (
        *sched_netem.options.nla_map[:2],
        ("TCA_NETEM_DELAY_DIST", "cdata"),
        *sched_netem.options.nla_map[3:5],
        ("TCA_NETEM_LOSS", "loss"),
        ("TCA_NETEM_RATE", "netem_rate"),
        ("TCA_NETEM_ECN", "uint32"),
        ("TCA_NETEM_RATE64", "uint64"),
        ("TCA_NETEM_PAD", "hex"),
        ("TCA_NETEM_LATENCY64", "int64"),
        ("TCA_NETEM_JITTER64", "int64"),
        ("TCA_NETEM_SLOT", "slot"),
        ("TCA_NETEM_SLOT_DIST", "cdata"),
        ("TCA_NETEM_PRNG_SEED", "uint64"),
    )

    class loss(nla):  # noqa: N801 - pyroute2 looks it up by this name
        """One of two models: four states, or two. Shares are counted in 2**-32."""

        nla_flags = NLA_F_NESTED
        nla_map = (
            ("NETEM_LOSS_UNSPEC", "none"),
            ("NETEM_LOSS_GI", "four_states"),
            ("NETEM_LOSS_GE", "two_states"),
        )

        class four_states(nla):  # noqa: N801 - pyroute2 looks it up by this name
            """Gap, burst gap, burst loss and gap loss; ``pxy``: from state x to state y."""

            fields = (("p13", "I"), ("p31", "I"), ("p32", "I"), ("p14", "I"), ("p23", "I"))

        class two_states(nla):  # noqa: N801 - pyroute2 looks it up by this name
            """Gilbert and Elliott's: ``h`` passes in the bad state, ``k1`` is lost in the good."""

            fields = (("p", "I"), ("r", "I"), ("h", "I"), ("k1", "I"))

    class slot(nla):  # noqa: N801 - pyroute2 looks it up by this name
        """Times in nanoseconds."""

        fields = (
            ("min_delay", "q"),
            ("max_delay", "q"),
            ("max_packets", "i"),
            ("max_bytes", "i"),
            ("dist_delay", "q"),
            ("dist_jitter", "q"),
        )


class U32Options(cls_u32.options):
    """``TCA_OPTIONS`` of a u32 filter."""

    nla_flags = NLA_F_NESTED


_HTB = {**vars(sched_htb), "options": HtbOptions, "stats2": Statistics}
plugins["htb"] = SimpleNamespace(**_HTB)
plugins["netem"] = SimpleNamespace(options=NetemOptions, stats2=Statistics)
plugins["bfifo"] = SimpleNamespace(options=ByteQueue, stats2=Statistics)
plugins["u32"] = SimpleNamespace(options=U32Options)
# An action has its counters in an attribute that is no part of a plugin.
common_act.tca_act_prio.tca_act.stats2 = Statistics
