"""Sections of `tidegate.yaml` on tenants and on waiting."""

from data.config import Section
from serving.config.keys import Bool, Float, Int, key
from serving.config.sections import LaneName


class Quota(Section):
    """Tokens, prompt and output, of an hour or a day."""

    tokens: Int = key("Quota.tokens", "The most in one window.", gt=0)
    sliding: Bool = key(
        "Quota.sliding",
        "Any stretch as long as the window counts; else the hours and days of the calendar, in UTC.",
        default=False,
    )
    burst_tokens: Int = key(
        "Quota.burst_tokens", "Most unused tokens of past windows that may be used on top.", default=0, ge=0
    )


class Tenant(Section):
    """What one tenant may use."""

    hourly: Quota | None = key("TenantLimits.hourly", "Quota of an hour. null: no limit.", default=None)
    daily: Quota | None = key("TenantLimits.daily", "Quota of a day. null: no limit.", default=None)
    weight: Float = key(
        "TenantLimits.weight", "Its share of a lane while others wait as well, against theirs.", gt=0
    )
    lane: LaneName = key("TenantLimits.lane", "Lane of its requests that name none.")
    closed: Bool = key("TenantLimits.closed", "Nothing of it is let in.")


class Tenants(Section):
    """Limits by tenant."""

    default: Tenant = key("Rules.default_tenant", "Limits of all others, each for itself.", default=Tenant())
    by_name: dict[str, Tenant] = key(
        "Rules.tenants",
        "Limits of single tenants; what isn't set here is no limit, not the default tenant's.",
    )
    max_remembered: Int = key("Rules.max_tenants", "Others that are remembered.", "tenants", gt=0)


class Waiting(Section):
    """Requests that wait for their turn."""

    max_requests: Int = key(
        "Rules.max_waiting", "Requests that may wait, in all lanes together.", "requests", gt=0
    )
    premium_grace_requests: Int = key(
        "Rules.waiting_grace", "Places beyond, for premium alone.", "requests", ge=0
    )
    max_wait_ms: Float = key("Rules.max_wait_ms", "Longest wait, whatever a request asks for.", "ms", gt=0)
    aged_after: Float = key(
        "Rules.aged_after",
        "Share of its longest wait after which nothing passes a request any more.",
        "share",
        ge=0,
        le=1,
    )
