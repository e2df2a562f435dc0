"""What a lane does with an epoch, without Spark: `lane` is the first file to read."""
