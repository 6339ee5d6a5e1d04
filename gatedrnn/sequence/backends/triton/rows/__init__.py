"""One file a cell: the pointwise part of its step and its derivative, in Triton; no product, no loop over time."""
