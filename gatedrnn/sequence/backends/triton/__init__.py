"""Kernels in Triton for NVIDIA and AMD GPUs: a product and a pointwise kernel a step. Triton is imported when a GPU runs them."""
