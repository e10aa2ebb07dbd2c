"""How many cores this process may use, which in a container are fewer than it sees."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def use_threads(threads: int | None, announce: Callable[[str], None] = lambda line: None) -> None:
    """Let torch use so many threads; None for `fitting_threads`, of which a change is told."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or fitting_threads())
    if threads is None and torch.get_num_threads() != before:
        announce(
            f"this process may use {usable_cores():g} of the machine's {os.cpu_count()} cores: "
            f"{torch.get_num_threads()} threads instead of {before}"
        )


def fitting_threads() -> int:
    """Torch's number of threads, or that of the cores for this process where these are fewer.

    With more, the system stops all threads for most of the time. A number that the user has set stays.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    return min(torch.get_num_threads(), max(1, int(usable_cores())))


def usable_cores() -> float:
    """Cores that this process may run on, or the time of so many where a quota allows less."""
    try:
        seen = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        seen = os.cpu_count() or 1
    return min([float(seen), *_quotas(_OWN_GROUPS, _CONTROL_GROUPS)])


def _quotas(own: Path, groups: Path) -> Iterator[float]:
    """The quotas of the control groups that this process is in, in cores, of both versions of such groups."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = groups / "cpu" if controllers else groups
        # A limit of a group holds for those within it. In a container, only the last may be visible.
        folder = base / path.strip("/")
        for place in (folder, *folder.parents):
            yield from _quota(place)
            if place == base:
                break


def _quota(group: Path) -> Iterator[float]:
    try:
        if (limits := group / "cpu.max").is_file():
            quota, period = limits.read_text(encoding="utf-8").split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="utf-8")
            period = (group / "cpu.cfs_period_us").read_text(encoding="utf-8")
        if quota != "max" and float(quota) > 0 and float(period) > 0:
            yield float(quota) / float(period)
    except (OSError, ValueError):  # no limit, or none that can be read
        return
