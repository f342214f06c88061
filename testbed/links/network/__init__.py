"""Network devices, namespaces, addresses and connections."""
