"""Figures of paper 1: migrations between intervals of key groups."""
