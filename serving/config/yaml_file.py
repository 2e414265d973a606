"""A YAML file as keys and values, with the line of each: a fault can then say where it stands."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data.errors import InputError
from serving.config.scrub import scrubbed

Place = tuple[int | str, ...]
"""Way to a value: keys, and positions in lists."""
Steps = tuple[str, ...]
"""The same as the file writes it."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds.

    Attributes:
        content: its keys and values.
        lines: line of each place, from 1.
        twice: places whose key stands there a second time, and both lines.

    """

    content: dict[Any, Any]
    lines: Mapping[Steps, int]
    twice: Mapping[Steps, tuple[int, int]]

    def line(self, place: Place) -> int | None:
        """Line of a place, or of the nearest place above it that the file has."""
        path = tuple(map(str, place))
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def load(path: Path) -> Document:
    """Read a YAML file; an empty one holds nothing.

    Raises:
        InputError: when it can't be read, isn't YAML, or holds no keys and values.

    """
    try:
        loader = yaml.SafeLoader(path.read_bytes())
        node = loader.get_single_node()
        places = [] if node is None else list(_places(node, (), set()))
        content = {} if node is None else loader.construct_document(node)
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}; give a configuration file") from error
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1},"
        raise InputError(
            f"{path}{where} is not YAML: {scrubbed(error.problem or 'nothing known')}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise InputError(f"{path} is nested too deep; give a configuration file") from error
    except ValueError as error:  # such as the 30th of February: YAML reads dates
        raise InputError(f"{path} holds a value that can't be: {error}") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold keys and values; got {type(content).__name__}")
    lines: dict[Steps, int] = {}
    twice: dict[Steps, tuple[int, int]] = {}
    for place, line in places:
        if place in lines:
            twice[place] = (lines[place], line)
        lines.setdefault(place, line)
    return Document(content, lines, twice)


def _places(node: yaml.Node, place: Steps, seen: set[int]) -> Iterator[tuple[Steps, int]]:
    """Places under a node. An anchor's are told once: aliases may make a small file endless."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                yield (*place, key.value), key.start_mark.line + 1
                yield from _places(value, (*place, key.value), seen)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            yield (*place, str(position)), value.start_mark.line + 1
            yield from _places(value, (*place, str(position)), seen)
