"""Allocation with regard to traffic between key groups (paper 2)."""
