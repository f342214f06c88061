"""Where nodes run: containers, network namespaces, or virtual time, behind one protocol."""
