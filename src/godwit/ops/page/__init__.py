"""The page of a run: live in the browser, and as one file."""
