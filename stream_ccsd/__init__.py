"""Streaming fraud detection with the conditional Cauchy-Schwarz divergence (C-CSD)."""
