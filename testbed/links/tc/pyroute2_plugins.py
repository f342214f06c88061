"""Plugins for what pyroute2 0.9 lacks of traffic control: ``bfifo``, all of netem's options, HTB
without rate tables, packets counted in 64 bits.

They are like those in ``pyroute2.netlink.rtnl.tcmsg``: importing this module registers them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyroute2.netlink import NLA_F_NESTED, nla
from pyroute2.netlink.rtnl.tcmsg import cls_u32, common, common_act, plugins, sched_htb, sched_netem

from testbed.links.tc.parameters import TICK_NS

ETHERNET = 1
"""A link layer whose packets take as many bytes as they have."""


class Statistics(common.stats2):
    """``TCA_STATS2``, to its last attribute; without what single disciplines tell."""

    nla_map = (
        ("TCA_STATS_UNSPEC", "none"),
        ("TCA_STATS_BASIC", "basic"),
        ("TCA_STATS_RATE_EST", "rate_est"),
        ("TCA_STATS_QUEUE", "queue"),
        ("TCA_STATS_APP", "hex"),
        ("TCA_STATS_RATE_EST64", "hex"),
        ("TCA_STATS_PAD", "hex"),
        ("TCA_STATS_BASIC_HW", "basic"),
        ("TCA_STATS_PKT64", "uint64"),
    )


class ByteQueue(nla):
    """``TCA_OPTIONS`` of a ``bfifo``, bytes."""

    fields = (("limit", "I"),)


class HtbOptions(nla):
    """``TCA_OPTIONS`` of HTB. For an Ethernet link the kernel wants no rate table."""

    nla_flags = NLA_F_NESTED
    nla_map = tuple(
        (name, {"rtab": "hex", "ctab": "hex"}.get(kind, kind))
        for name, kind in sched_htb.options.nla_map
    )

    htb_glob = sched_htb.options.htb_glob

    class htb_parms(nla):  # noqa: N801 - pyroute2 looks it up by this name
        """A class's rate and ceiling, bytes a second, and its bursts, ticks of 64 ns."""

        fields = tuple(
            (name.replace("___reserved", "_linklayer"), layout)
            for name, layout in sched_htb.options.htb_parms.fields
        )


def class_parameters(requested: dict[str, Any]) -> dict[str, Any]:
    """Options of ``IPRoute.tc("add-class", "htb", …)`` without tables, bursts exact."""
    built = sched_htb.get_class_parameters(requested)
    (_, parameters), *others = built["attrs"]
    for which, burst in (("rate", "buffer"), ("ceil", "cbuffer")):
        size = requested.get("burst" if which == "rate" else "cburst")
        parameters |= {f"{which}_linklayer": ETHERNET, f"{which}_cell_align": -1}
        if size is not None:
            parameters[burst] = round(size * 1e9 / parameters[which] / TICK_NS)
    tables = {"TCA_HTB_RTAB", "TCA_HTB_CTAB"}
    return {"attrs": [built["attrs"][0], *(each for each in others if each[0] not in tables)]}


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


class Action(common_act.tca_act_prio.tca_act):
    """An action of a filter, with its counters."""

    nla_flags = NLA_F_NESTED
    stats2 = Statistics


class Actions(common_act.tca_act_prio):
    """``TCA_U32_ACT``."""

    nla_flags = NLA_F_NESTED
    tca_act = Action


class U32Options(cls_u32.options):
    """``TCA_OPTIONS`` of a u32 filter."""

    nla_flags = NLA_F_NESTED
    tca_act_prio = Actions


def _plugin(base: object, **parts: object) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(base), **parts})


plugins["htb"] = _plugin(
    sched_htb,
    options=HtbOptions,
    stats2=Statistics,
    get_class_parameters=class_parameters,
)
plugins["netem"] = _plugin(sched_netem, options=NetemOptions, stats2=Statistics)
plugins["bfifo"] = SimpleNamespace(options=ByteQueue, stats2=Statistics)
plugins["u32"] = _plugin(cls_u32, options=U32Options)
