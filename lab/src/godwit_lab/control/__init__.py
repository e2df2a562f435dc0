"""Placement styles and elasticities of the papers, for Godwit's controller."""
