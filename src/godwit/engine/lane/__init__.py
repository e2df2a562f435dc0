"""What a lane does with an epoch; begin with `lane`."""
