"""Progress bars of a job, one a step."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pipeline.train import Progress as Told


@contextmanager
def steps(console: Console) -> Iterator[Told]:
    """Show each step that the job tells of; the one before it counts as done."""
    columns = (SpinnerColumn(), TextColumn("{task.description:<26}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, int] = {}

        def told(what: str, share: float) -> None:
            if what not in tasks:
                for task in tasks.values():
                    bar.update(task, completed=1.0)  # type: ignore[arg-type]
                    bar.stop_task(task)  # type: ignore[arg-type]
                tasks[what] = bar.add_task(what, total=1.0)
            bar.update(tasks[what], completed=share)  # type: ignore[arg-type]

        yield told
        for task in tasks.values():
            bar.update(task, completed=1.0)  # type: ignore[arg-type]
