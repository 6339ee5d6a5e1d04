"""Errors, argument checks, registries, seeds and atomic files: what every room needs; nothing of ours is imported here."""
