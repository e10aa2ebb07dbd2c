"""What the tables at the terminal say."""

from rich.console import Console

from sequoia_cli.cli.render import rates_table
from sequoia_cli.core.counts import PromptCounts
from sequoia_cli.core.rates import AcceptanceRates


def rows_of(table):
    """The cells of each row of a table as it is printed, without headings."""
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    first = next(number for number, line in enumerate(lines) if "───" in line) + 1
    return [line.split() for line in lines[first:] if line.strip()]


def test_the_last_row_of_rates_shows_the_trials_of_all_depths_it_is_pooled_from():
    sample = PromptCounts(0, (900, 300, 200), ((450, 90), (60, 30), (40, 20)))
    table = rates_table(AcceptanceRates.from_samples([sample], {}))
    assert rows_of(table) == [
        ["1", "0.500", "0.100", "0.600", "900"],
        ["2+", "0.200", "0.100", "0.300", "500"],
    ]


def test_rates_without_counts_have_no_column_of_trials():
    assert rows_of(rates_table(AcceptanceRates(((0.5, 0.25),)))) == [["1+", "0.500", "0.250", "0.750"]]
