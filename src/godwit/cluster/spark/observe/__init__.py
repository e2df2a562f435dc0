"""What others see of a query: listeners, progress, metrics."""
