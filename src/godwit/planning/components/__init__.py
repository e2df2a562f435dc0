"""Paper 3: which operators share a component, so that rows between them need no exchange."""
