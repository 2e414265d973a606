"""Conversations: chat tenants, their sessions, and contexts that grow turn by turn."""

from dataclasses import dataclass

import numpy as np

from data.workload.calls import NONE, Calls, Floats, Ints, Sender, end, limit_of, service_s
from data.workload.lengths import Lengths, client_lengths, draw_tokens
from data.workload.settings import Settings, stream

FOLLOW_UP = 0.3
"""Length of a later message beside the opening one, which brings the system prompt and the documents."""
CACHE_LOSS = 0.04
"""Share of turns whose prefix was evicted since the turn before."""
BLOCK_TOKENS = 16
"""Prefix caches keep whole blocks only."""
MAX_CONTEXT_TOKENS = 65_536
MAX_MESSAGE_TOKENS = 32_768
MAX_OUTPUT_TOKENS = 8_192
MAX_TURNS = 40
THINK_SIGMA = 0.9


@dataclass(frozen=True, slots=True)
class ChatTenants:
    """Chat tenants; tenant i sends as sender i. Arrays have shape (tenants,).

    Attributes:
        senders: name, lane and model of each.
        share: of all chat requests, sums to 1.
        turns: mean turns per session.
        think_s: median think time, seconds.
        lengths: opening prompt and output.
        limit: usual max_tokens, -1 for tenants that set none.

    """

    senders: list[Sender]
    share: Floats
    turns: Floats
    think_s: Floats
    lengths: Lengths
    limit: Ints

    @property
    def mean_work_tokens(self) -> float:
        """Expected work of a chat request, tokens: what isn't cached of the prompt, plus the output."""
        opening, output = self.lengths.mean_tokens.T
        first = 1 / self.turns
        message = opening * (first + (1 - first) * FOLLOW_UP)
        # The mean turn of a geometric session has turns - 1 others before it.
        context = (self.turns - 1) * (message + output)
        return float((self.share * (message + output + CACHE_LOSS * context)).sum())


def chat_tenants(settings: Settings) -> ChatTenants:
    """Draw the chat tenants: Zipf shares, as in the public mixes of clients."""
    random = stream(settings.seed, "chat tenants")
    count = settings.chat_tenants
    share = 1.0 / np.arange(1, count + 1)
    share /= share.sum()
    lane = np.where(random.random(count) < 0.4, "premium", "standard")
    model = np.where(random.random(count) < 0.6, "large", "small")
    senders = [Sender(f"chat-{i:02}", str(lane[i]), str(model[i])) for i in range(count)]
    lengths = client_lengths(random, share, settings.lengths)
    limit = np.where(random.random(count) < 0.6, limit_of(lengths.mean_tokens[:, 1]), NONE)
    return ChatTenants(
        senders, share, random.uniform(2, 5, count), random.uniform(25, 60, count), lengths, limit
    )


def hold_sessions(
    random: np.random.Generator, chat: ChatTenants, tenant: Ints, start_s: Floats, first_session: int
) -> Calls:
    """All turns of the sessions that start at ``start_s``, each with its tenant, numbered from first_session.

    A turn's prompt is the prompt and the output before it plus a new message; it comes a think time after
    the answer before it.
    """
    turns = np.minimum(random.geometric(1 / chat.turns[tenant]), MAX_TURNS)
    first = np.cumsum(turns) - turns
    owner = np.repeat(tenant, turns)
    turn = np.arange(len(owner)) - np.repeat(first, turns)

    ln_median, sigma = chat.lengths.ln_median[owner], chat.lengths.sigma[owner]
    ln_message = ln_median[:, 0] + np.where(turn > 0, np.log(FOLLOW_UP), 0.0)
    message = draw_tokens(random, ln_message, sigma[:, 0], MAX_MESSAGE_TOKENS)
    output = draw_tokens(random, ln_median[:, 1], sigma[:, 1], MAX_OUTPUT_TOKENS)
    limit = np.where(random.random(len(owner)) < 0.9, chat.limit[owner], NONE)
    outcome, output = end(random, np.where(limit == NONE, output, np.minimum(output, limit)))

    context = _before(message + output, first, turns).astype(np.int64)
    kept = (turn > 0) & (random.random(len(owner)) >= CACHE_LOSS)
    cached = np.where(kept, context // BLOCK_TOKENS * BLOCK_TOKENS, 0)
    prompt = context + message
    served_s = service_s(random, prompt - cached, output)
    think_s = chat.think_s[owner] * np.exp(THINK_SIGMA * random.standard_normal(len(owner)))
    arrived_s = np.repeat(start_s, turns) + _before(served_s + think_s, first, turns)
    calls = Calls(
        sender=owner,
        arrived_s=arrived_s,
        prompt=prompt,
        cached=cached,
        limit=limit,
        output=output,
        session=np.repeat(np.arange(first_session, first_session + len(turns)), turns),
        outcome=outcome,
        finished_s=arrived_s + served_s,
    )
    return calls.take(prompt <= MAX_CONTEXT_TOKENS)


def _before(values: Ints | Floats, first: Ints, counts: Ints) -> Floats:
    """Sum of the values before each one within its own run of ``counts`` values."""
    total = np.cumsum(values, dtype=np.float64) - values
    return total - np.repeat(total[first], counts)
