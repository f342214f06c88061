"""Finding a container's interface and the switch's end of its cable: by numbers, never by names."""

from __future__ import annotations

from testbed.errors import ExperimentError
from testbed.fabric.base import Interface
from testbed.links import devices
from testbed.links.channel import Channel


def locate(netns: str, mac: str) -> tuple[Interface, Interface]:
    """The device of that address inside ``netns``, and its peer in the agent's own namespace.

    Both ends must name each other: the peer by index and by the number of the other's namespace.
    Raises ExperimentError where there is no such cable.
    """
    try:
        with Channel(netns) as inner, Channel() as own:
            nic = _by_mac(devices.all_devices(inner), mac.lower(), netns)
            far = devices.namespace_number(inner, "/proc/thread-self/ns/net")
            peer = devices.device(own, nic.peer or 0)
            near = devices.namespace_number(own, netns)
    except OSError as error:
        raise ExperimentError(f"cannot look into {netns}: {error.strerror}") from error
    if None in (near, far) or (nic.peer_netns, peer.peer, peer.peer_netns) != (
        far,
        nic.index,
        near,
    ):
        raise ExperimentError(
            f"{nic.name!r} in {netns} is no cable into this namespace: its other end would be "
            f"{peer.name!r} by index, but that one says otherwise"
        )
    return Interface(netns, nic.index, nic.name), Interface(None, peer.index, peer.name)


def _by_mac(found: list[devices.Device], mac: str, netns: str) -> devices.Device:
    for device in found:
        if device.mac == mac and device.peer is not None:
            return device
    known = ", ".join(f"{device.name} {device.mac}" for device in found)
    raise ExperimentError(f"no interface in {netns} has the address {mac}; there are: {known}")
