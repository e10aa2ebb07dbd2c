"""Exact and observed distributions of short texts: chi-squared tests of decoding against the target.

A right program fails one of them in one of a million seeds; 1,000 texts see a total variation of about 0.1
over a few dozen outcomes.
"""

import itertools

import torch
from scipy.stats import chi2

from sequoia_cli.engine.warp import Sampling, probabilities

VOCABULARY, PROMPT, TEXTS = 12, [5, 3, 8, 1], 1000
CUT, WHOLE = Sampling(0.7, 3, 0.8), Sampling(1.0)


def exact_distribution(model, sampling, length):
    """Probability of every text of `length` tokens: products of the model's own next-token distributions."""
    probs = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, chance in probs.items():
            logits = model(input_ids=torch.tensor([[*PROMPT, *text]])).logits[0, -1]
            for token, p in enumerate(probabilities(logits.double(), sampling).tolist()):
                if p > 0:
                    longer[(*text, token)] = chance * p
        probs = longer
    return probs


def table_distribution(table, sampling, length):
    """The same for a scripted target, whose distribution after a token is that token's row of `table`."""
    rows = probabilities(torch.tensor(table, dtype=torch.float64).log(), sampling).tolist()
    probs = {(PROMPT[-1],): 1.0}
    for _ in range(length):
        probs = {
            (*text, i): p * q for text, p in probs.items() for i, q in enumerate(rows[text[-1]]) if q > 0
        }
    return {text[1:]: p for text, p in probs.items()}


def texts(decoder, length):
    """Counts of the texts that one generator's stream of noise gives."""
    generator = torch.Generator().manual_seed(20)
    counts = {}
    for _ in range(TEXTS):
        steps = decoder.decode(PROMPT, length, generator=generator)
        text = tuple(itertools.chain.from_iterable(step.tokens for step in steps))
        counts[text] = counts.get(text, 0) + 1
    return counts


def p_value(counts, probs):
    """Of the counts under the distribution; outcomes too rare for the test are taken together."""
    assert set(counts) <= set(probs), "a text that the target never writes"
    common = {text: p for text, p in probs.items() if p * TEXTS >= 5}
    cells = [(counts.get(text, 0), p * TEXTS) for text, p in common.items()]
    rest = TEXTS - sum(seen for seen, _ in cells), TEXTS - sum(expected for _, expected in cells)
    if rest[1] >= 5:
        cells.append(rest)
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    return float(chi2.sf(statistic, len(cells) - 1))
