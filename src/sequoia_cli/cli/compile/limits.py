"""The limits that `sequoia compile` is given, and whether a forced size or a fixed shape keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    import typer

    from sequoia_cli.cli.compile.inputs import Inputs
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.compiler.choose import Limits
    from sequoia_cli.core.tree import TokenTree

DEFAULT_BUDGET = 64
DEFAULT_DEPTH = 32
DEFAULT_BRANCH = 32
#: Deeper levels and later ranks are hardly ever accepted; the tables of so many would be slow and large.
MAX_DEPTH = 128
#: Bytes of tables that are announced.
MUCH_MEMORY = 1e9
MAX_BRANCH = 256


def checked_limits(budget: int | None, max_depth: int, max_branch: int, size: int | None) -> Limits:
    """The limits, each within what is allowed."""
    from sequoia_cli.compiler.choose import Limits
    from sequoia_cli.compiler.tables import MAX_SIZE

    for flag, value, most in (
        ("--budget", budget, MAX_SIZE),
        ("--size", size, MAX_SIZE),
        ("--max-depth", max_depth, MAX_DEPTH),
        ("--max-branch", max_branch, MAX_BRANCH),
    ):
        if value is not None and not 1 <= value <= most:
            raise BadInput(f"{flag} {value} is out of range; 1 to {most} is allowed")
    if size is not None and budget is not None and size > budget:
        raise BadInput(f"--size {size} is above --budget {budget}; leave --budget out to force a size")
    return Limits(size or budget or DEFAULT_BUDGET, max_depth, max_branch)


def announce_tables(limits: Limits, inputs: Inputs, say: Commentary) -> None:
    """Say how much memory the search takes where it is much: rates that rise with the rank need tables."""
    from sequoia_cli.compiler.heap import is_sorted
    from sequoia_cli.compiler.tables import rate_matrix, table_bytes

    rates = rate_matrix(inputs.estimate.rows, limits.max_depth, limits.max_branch)
    taken = 0 if is_sorted(rates) else table_bytes(rates, limits.budget, limits.max_depth)
    if taken > MUCH_MEMORY:
        say.note(f"the search takes up to {taken / 1e9:.1f} GB of memory, since rates rise with the rank")


def check_size(size: int, limits: Limits, inputs: Inputs) -> None:
    """A forced size has to lie within the profile's times and fit into the limits."""
    from sequoia_cli.compiler.best import largest_tree

    covered = inputs.profile.costs.target.end
    if covered is not None and size > covered:
        raise BadInput(f"--size {size} is beyond the profile, whose times end at {covered} tokens")
    reachable = largest_tree(inputs.estimate.rows, limits.max_depth, limits.max_branch)
    if size > reachable:
        raise BadInput(
            f"--size {size} is out of reach: {limits.max_depth} layers hold at most {reachable} nodes here",
            hint="raise --max-depth or --max-branch, or give rates for more ranks",
        )


def fixed_shape(name: str, context: typer.Context) -> TokenTree | None:
    """The tree that `--shape` asks for; None where one is to be searched for."""
    from sequoia_cli.compiler.shape_names import named_shape

    try:
        tree = named_shape(name)
    except BadInput as error:
        raise BadInput(f"--shape {error.message}", error.hint) from None
    if tree is not None:
        _check_shape(name, tree, context)
    return tree


def _check_shape(name: str, tree: TokenTree, context: typer.Context) -> None:
    """A fixed shape has to keep the limits that were given; the others are for the search alone."""
    for option, found, what in (
        ("budget", tree.size, "nodes"),
        ("max_depth", tree.depth, "layers"),
        ("max_branch", tree.max_branch, "children of a node"),
        ("size", tree.size, "nodes"),
    ):
        limit = _given(context, option)
        if limit is not None and (found != limit if option == "size" else found > limit):
            flag = "--" + option.replace("_", "-")
            raise BadInput(
                f"--shape {name} has {found} {what}, which {flag} {limit} does not allow",
                hint=f"leave {flag} out: a fixed shape is not searched for",
            )


def _given(context: typer.Context, option: str) -> Any:
    """The option's value where it does not stand at its default."""
    source = context.get_parameter_source(option)
    return None if source is None or source.name == "DEFAULT" else context.params[option]
