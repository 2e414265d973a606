"""Our own form: CSV, JSONL or Parquet whose columns are those of the request schema.

request_id, arrived_at and prompt_tokens must be there; every other column may be. A column `source` may be
there too, but gives way to the name that the trace is read under.
"""

from data.readers.columns import READABLE, REQUIRED, request_fields
from data.readers.format import Format

NEEDED = ("request_id", *REQUIRED)

FORMAT = Format(
    name="tidegate",
    title="Tidegate CSV, JSONL or Parquet",
    kinds=("csv", "jsonl", "parquet"),
    required=NEEDED,
    optional=("source", *(name for name in READABLE if name not in NEEDED)),
    fields=request_fields({name: name for name in READABLE}, required=NEEDED),
)
