"""Files of a checkpoint on a local or remote file system: durable, atomic, claimed."""
