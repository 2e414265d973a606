"""How the end of a request reaches the controller: what is charged for it, and what it teaches."""

from serving.controller.decide import Controller
from serving.http.messages import SettleRequest


def settle(controller: Controller, request: SettleRequest, now_s: float) -> bool:
    """Free a reservation; false when there is none of that name.

    What failed or was shed costs its tenant nothing. Only a served answer whose tokens were counted is as
    long as its flow's answers are; of an aborted one what was generated is charged.
    """
    if request.outcome in ("failed", "shed"):
        return controller.cancel(request.reservation_id, now_s)
    learn = request.outcome == "served" and not request.estimated
    return controller.settle(
        request.reservation_id, request.output_tokens, now_s, request.ttft_ms, learn=learn
    )
