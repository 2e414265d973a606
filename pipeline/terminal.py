"""What the commands print to."""

from rich.console import Console
from rich.text import Text

console = Console()
errors = Console(stderr=True)


def say(line: str) -> None:
    """Print a line as it is: brackets and colons in a path or message are no markup."""
    console.print(Text(line), soft_wrap=True)
