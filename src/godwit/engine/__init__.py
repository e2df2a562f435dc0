"""The driver's part and the lanes' part of an epoch, without Spark."""
