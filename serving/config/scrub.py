"""What may be secret in a configuration is kept out of all that is printed."""

import re


def scrubbed(text: str) -> str:
    """The text without what may be secret in its URLs: passwords, and options named as such.

    >>> scrubbed("postgresql://tide:geheim@db/lake?sslmode=require&password=geheim")
    'postgresql://tide:***@db/lake?sslmode=require&password=***'
    >>> scrubbed("redis://tide:geh/eim@more@store:6379/0")
    'redis://tide:***@store:6379/0'
    """
    # Up to the last '@': in a password somebody may have forgotten to write '/' or '@' as %2F or %40.
    text = re.sub(r"(://[^/?#\s:@]*):[^\s'\"]*@", r"\1:***@", text)
    return re.sub(r"(?i)([?&][^=&\s]*(?:pass|token|key|secret|auth|sig)[^=&\s]*=)[^&#\s'\"]*", r"\1***", text)
