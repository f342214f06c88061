"""What compression costs and how well it hits its mark, against what anybody has anyway."""
