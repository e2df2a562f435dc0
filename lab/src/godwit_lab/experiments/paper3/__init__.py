"""Figures of paper 3: windows, fusion and instant migration."""
