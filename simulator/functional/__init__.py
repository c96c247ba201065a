"""Functional execution: a compiled program, section by section and tile by tile, on real numbers."""
