"""A key of the configuration: its meaning, unit and range, and the rule that it sets.

A key names the attribute that it sets, such as `Rules.lease_s`. Its default is that attribute's own, so no
number stands twice, and the way from a section to the rules needs no code for each key.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from serving.controller.breach import BreachRules
from serving.controller.degradation import DegradationRules
from serving.controller.eviction.settings import EvictionRules
from serving.controller.kv_headroom import HeadroomRules
from serving.controller.rules import Rules
from serving.controller.tenants import TenantLimits
from serving.settings import TOKEN, Settings
from serving.shared.settings import SharedSettings

HEADER = f"^{TOKEN.pattern}$"
"""What the name of a header must match."""
Int = Annotated[int, Field(strict=True)]
"""A whole number; text and true are none."""
Float = Annotated[float, Field(strict=True)]
Bool = Annotated[bool, Field(strict=True)]

_DEFAULTS = {
    "Rules": Rules(),
    "DegradationRules": DegradationRules(),
    "HeadroomRules": HeadroomRules(),
    "BreachRules": BreachRules(),
    "EvictionRules": EvictionRules(),
    "TenantLimits": TenantLimits(),
    "Settings": Settings(),
    "SharedSettings": SharedSettings("redis://"),
}


def key(sets: str, meaning: str, unit: str | None = None, **options: Any) -> Any:
    """A field of a section.

    Args:
        sets: attribute that it sets, with its class.
        meaning: a sentence for people.
        unit: of the value, where the name doesn't end in it.
        options: bounds and whatever else pydantic's Field takes; a default where it isn't the attribute's.

    """
    owner, _, attribute = sets.partition(".")
    if not {"default", "default_factory"} & options.keys() and owner in _DEFAULTS:
        options["default"] = getattr(_DEFAULTS[owner], attribute)
    if isinstance(options.get("default"), float) or unit == "share":
        options["allow_inf_nan"] = False
    return Field(description=meaning, json_schema_extra={"sets": sets, "unit": unit}, **options)


def arguments(section: BaseModel, owner: str) -> dict[str, Any]:
    """What a section sets of a class, by attribute."""
    found: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        extra = field.json_schema_extra
        sets = str(extra["sets"]) if isinstance(extra, dict) and "sets" in extra else ""
        if sets.startswith(f"{owner}."):
            found[sets.partition(".")[2]] = getattr(section, name)
    return found
