"""How elements are chosen: exactly, by a threshold that a distribution suggests, at random. One
file each."""
