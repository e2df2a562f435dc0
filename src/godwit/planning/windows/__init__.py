"""Paper 3: how complete windows are built from partials, from smaller windows, and from others."""
