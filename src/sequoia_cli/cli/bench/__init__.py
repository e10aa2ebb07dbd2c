"""`sequoia bench`: this engine and others on the same prompts."""
