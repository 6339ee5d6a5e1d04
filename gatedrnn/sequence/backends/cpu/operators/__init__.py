"""PyTorch operators of one pass, with their loops: noise, cross-entropy, products with compressed weights; what all check."""
