"""How a step grows with the number of workers, and what simulating it takes."""
