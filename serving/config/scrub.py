"""What may be secret in a configuration is kept out of all that is printed."""

import re


def scrubbed(text: str) -> str:
    """The text without what may be secret in its URLs: passwords, and options named as such.

    >>> scrubbed("postgresql://tide:geheim@db/lake?sslmode=require&password=geheim")
    'postgresql://tide:***@db/lake?sslmode=require&password=***'
    """
    text = re.sub(r"(://[^/?#\s:@]*):[^/?#\s]*@", r"\1:***@", text)
    return re.sub(r"(?i)([?&][^=&\s]*(?:pass|token|key|secret|auth|sig)[^=&\s]*=)[^&#\s'\"]*", r"\1***", text)
