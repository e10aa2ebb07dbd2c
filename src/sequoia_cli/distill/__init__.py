"""Making a draft for a target: the target writes texts, and the draft is trained on its distributions.

Imports neither torch nor transformers.
"""

#: Kinds of draft: one that reads the target's hidden states, and a language model of its own.
FEATURE, INDEPENDENT = KINDS = ("feature", "independent")
