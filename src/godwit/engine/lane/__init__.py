"""The work of a lane in an epoch; begin with `lane`."""
