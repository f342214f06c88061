"""How fast gradients are exchanged: rounds of every exchange, against other libraries and the bare link."""
