"""Products in other precisions than that of the panels: two parts of bfloat16, and weights in small forms."""
