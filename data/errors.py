"""The one exception for input that a person can mend."""


class InputError(Exception):
    """Bad input: a sentence that says what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2. Tracebacks are for our own faults.
    """
