"""The privileged process that changes the network, and its client."""
