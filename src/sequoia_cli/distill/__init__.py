"""Making a draft for a target: texts that the target writes, and training against its distributions."""
