"""Plain shapes to compare the best tree with. Each contains all its smaller ones: the first n nodes of a
breadth-first tree are a tree themselves, so one large shape stands for the whole family."""

from __future__ import annotations

from collections.abc import Sequence

from sequoia_cli.core.tree import TokenTree


def chains(count: int, size: int) -> TokenTree:
    """`count` independent chains under one root, `size` nodes in all, as equal in length as that allows.

    One chain is plain sequence speculation; as many chains as nodes are one level of children.
    """
    return TokenTree(tuple(-1 if node == 0 else max(0, node - count) for node in range(size)))


def k_ary(branch: int, size: int) -> TokenTree:
    """The complete tree of `size` nodes with `branch` children each, filled layer by layer."""
    return TokenTree(tuple(-1 if node == 0 else (node - 1) // branch for node in range(size)))


def expansion(counts: Sequence[int]) -> TokenTree:
    """The tree in which every node of layer i has `counts[i]` children: SpecInfer's expansion configuration
    <k_1, ..., k_m> (arXiv 2305.09781, section 3), which every other shape of equal layers is a case of."""
    layers, width = [], 1
    for count in counts:
        layers.append([count] * width)
        width *= count
    return TokenTree.from_child_counts(layers)


def prefix(tree: TokenTree, size: int) -> TokenTree:
    """The tree of the first `size` nodes."""
    return TokenTree(tree.parents[:size])
