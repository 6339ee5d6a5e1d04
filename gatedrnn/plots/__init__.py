"""Saved results → figures and pages; no model, no torch, nothing computed but positions and colours."""
