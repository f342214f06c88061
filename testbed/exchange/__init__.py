"""How gradients travel: frames, endpoints, and the parameter server."""
