"""Arrow columns: as arrays, grouped by key, hashed, and as Python values."""
