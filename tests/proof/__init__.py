"""What a restructuring must not change, written down before it and compared after it."""
