"""The driver's part of an epoch, and what its lanes do, without Spark."""
