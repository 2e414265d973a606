"""Exceptions that callers tell apart: input that a person can mend, and a moment that is too busy."""


class InputError(Exception):
    """Bad input: a sentence that says what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2. Tracebacks are for our own faults.
    """


class Busy(Exception):  # noqa: N818
    """Too much waits already: nothing was taken, and the same call may succeed in a while."""


class StorageError(InputError):
    """No room to store something: a sentence that says where, and what to do. Nothing of it was kept."""
