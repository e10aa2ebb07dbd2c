"""Making a draft for a target: texts that the target writes, and training against its distributions.

Nothing heavy is imported here.
"""

#: Kinds of draft: one that reads the target's hidden states, and a model of its own.
FEATURE, INDEPENDENT = KINDS = ("feature", "independent")
