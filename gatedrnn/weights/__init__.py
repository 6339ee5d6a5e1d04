"""Weights in small forms: how they are stored, and the tensor that stands for one."""
