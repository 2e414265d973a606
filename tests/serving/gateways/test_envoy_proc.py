import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from data.errors import InputError
from models.bundle import Bundle
from serving.clock import ManualClock
from serving.http.key_ring import KeyRing
from serving.http.keys import parse
from serving.http.messages import AdmitRequest
from serving.server import check_ext_proc, listen
from serving.service import Service
from serving.settings import Settings

pytest.importorskip("grpc", reason="no gRPC here; pip install 'tidegate[envoy]' brings it")

import grpc

from serving.gateways.envoy_proc import ExternalProcessor, running
from serving.gateways.ext_proc_messages import ProcessingRequest, ProcessingResponse

EDGE, DASH = "edge-" + "e" * 40, "dash-" + "d" * 40
CUT = "cut"
"""Stands for Envoy resetting the stream."""


class Settling:
    """A service, its processor, and streams told step by step."""

    def __init__(self, bundle: Bundle) -> None:
        self.clock = ManualClock(1_700_000_000_000_000)
        self.service = Service(bundle, Settings(), self.clock)
        self.processor = ExternalProcessor(self.service)

    def admit(self) -> str:
        decision = self.service.admit(AdmitRequest(prompt_tokens=1_000))
        assert decision.reservation_id is not None
        return decision.reservation_id

    def tell(self, *steps: Any) -> list[Any]:
        """Answers to a stream of these steps."""

        async def said() -> AsyncIterator[Any]:
            for step in steps:
                if step is CUT:
                    raise asyncio.CancelledError
                yield step

        async def collect() -> list[Any]:
            answers = self.processor.process(said(), None)  # type: ignore[arg-type]
            return [answer async for answer in answers]

        return asyncio.run(collect())

    def count(self, result: str) -> float:
        registry = self.service.metrics.registry
        return registry.get_sample_value("tidegate_envoy_settlements_total", {"result": result}) or 0.0

    def held(self) -> int:
        return self.service.controller.snapshot(self.clock.monotonic_s()).held_tokens


@pytest.fixture
def settling(bundle_folder: Callable[[float | None], Path]) -> Settling:
    return Settling(Bundle.load(bundle_folder(None)))


def headers(kind: str, end: bool = False, mode: bool = True, **values: str) -> Any:
    told = [{"key": name.replace("_", "-"), "raw_value": value.encode()} for name, value in values.items()]
    step = {"headers": {"headers": told}, "end_of_stream": end}
    return ProcessingRequest(**{kind: step}, observability_mode=mode)


def request(reservation_id: str, **more: Any) -> Any:
    return headers("request_headers", x_tidegate_reservation_id=reservation_id, **more)


def response(status: str = "200", **more: Any) -> Any:
    step = headers("response_headers", content_type="application/json", **more)
    step.response_headers.headers.headers.add(key=":status", raw_value=status.encode())
    return step


def chunk(body: bytes, end: bool = False, mode: bool = True) -> Any:
    return ProcessingRequest(response_body={"body": body, "end_of_stream": end}, observability_mode=mode)


ANSWER = json.dumps({"usage": {"completion_tokens": 5}}).encode()


def test_an_onlooker_is_answered_nothing_and_settles_at_the_end_of_the_answer(settling: Settling) -> None:
    assert settling.tell(request(settling.admit()), response(), chunk(ANSWER, end=True)) == []
    assert (settling.count("told"), settling.held()) == (1, 0)


def test_each_step_that_envoy_waits_for_is_answered_in_kind_and_changes_nothing(settling: Settling) -> None:
    steps = [
        request("r", mode=False),
        response(mode=False),
        chunk(ANSWER, mode=False),
        chunk(b"", True, False),
    ]
    steps.append(ProcessingRequest(response_trailers={}))
    answers = settling.tell(*steps)
    assert [answer.WhichOneof("step") for answer in answers] == [step.WhichOneof("step") for step in steps]
    # Tag and length alone: an empty message of the right kind.
    assert [len(answer.SerializeToString()) for answer in answers] == [2] * 5


@pytest.mark.parametrize(
    ("steps", "outcome", "output_tokens"),
    [
        ([response(), chunk(ANSWER[:9]), chunk(ANSWER[9:], end=True)], "served", 5),
        ([response(), chunk(ANSWER), ProcessingRequest(response_trailers={})], "served", 5),
        ([response("429", end=True)], "shed", None),
        ([response("503", end=True, x_llm_d_request_dropped_reason="rejected-no-endpoints")], "shed", None),
        ([response("500", end=True)], "failed", None),
        ([response("204", end=True)], "served", None),
        ([], "aborted", None),
        ([CUT], "aborted", None),
        ([response(), chunk(ANSWER[:9]), CUT], "aborted", None),
        ([response(), chunk(ANSWER[:9])], "aborted", None),
    ],
)
def test_however_an_answer_ends_its_reservation_is_settled_once(
    settling: Settling, steps: list[Any], outcome: str, output_tokens: int | None
) -> None:
    settled = []
    settle = settling.service.settle
    settling.service.settle = lambda told: bool(settled.append(told)) or settle(told)  # type: ignore[method-assign]
    try:
        settling.tell(request(settling.admit()), *steps)
    except asyncio.CancelledError:
        assert CUT in steps
    ((reservation_outcome, tokens),) = [(told.outcome, told.output_tokens) for told in settled]
    assert (reservation_outcome, tokens) == (outcome, output_tokens)
    assert settling.held() == 0
    assert settling.count("told") == 1


def test_answers_without_a_reservation_are_counted_by_their_cause(settling: Settling) -> None:
    settling.tell(request(""), response(end=True))
    settling.tell(request("a" * 300), response(end=True))
    settling.tell(headers("request_headers", x_envoy_auth_failure_mode_allowed="true"), response(end=True))
    settling.tell(request("r-unknown"), response(end=True))
    assert [settling.count(result) for result in ("unreserved", "unchecked", "late")] == [2, 1, 1]


def test_a_stop_of_ours_leaves_what_still_runs_unsettled(settling: Settling) -> None:
    async def stop() -> None:
        told: asyncio.Queue[Any] = asyncio.Queue()

        async def said() -> AsyncIterator[Any]:
            while True:
                yield await told.get()

        async def drain() -> None:
            async for _ in settling.processor.process(said(), None):  # type: ignore[arg-type]
                pass

        stream = asyncio.create_task(drain())
        await told.put(request(settling.admit()))
        await asyncio.sleep(0)
        settling.processor.forget()
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream

    asyncio.run(stop())
    assert settling.held() > 0


def test_messages_are_envoys_own_on_the_wire() -> None:
    """Bytes that Envoy's own definitions made; their protocol_config is not declared here and is skipped."""
    wire = bytes.fromhex("1a140a100a0e0a073a7374617475731a03323030180150015a020802")
    told = ProcessingRequest.FromString(wire)
    (header,) = told.response_headers.headers.headers
    assert (header.key, header.raw_value) == (":status", b"200")
    assert (told.response_headers.end_of_stream, told.observability_mode) == (True, True)
    assert ProcessingResponse(response_body={}).SerializeToString() == bytes.fromhex("2200")


def test_an_address_in_use_is_one_sentence(settling: Settling) -> None:
    service = Service(settling.service.bundle, Settings(), settling.clock)

    async def start(port: int) -> None:
        async with running(service, "127.0.0.1", port):
            raise AssertionError("two can't listen on one port")

    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=r"can't be listened on .* --ext-proc-port"):
            check_ext_proc("127.0.0.1", port)
        with pytest.raises(InputError, match=r"can't be listened on; .* --ext-proc-port"):
            asyncio.run(start(port))


@pytest.mark.parametrize(
    ("metadata", "status", "reason"),
    [
        ((("authorization", f"Bearer {EDGE}"),), "OK", None),
        ((("x-tidegate-key", EDGE),), "OK", None),
        ((), "UNAUTHENTICATED", "missing"),
        ((("authorization", EDGE),), "UNAUTHENTICATED", "missing"),
        ((("authorization", f"Bearer {EDGE}x"),), "UNAUTHENTICATED", "unknown"),
        ((("authorization", f"Bearer {DASH}"),), "PERMISSION_DENIED", "scope"),
    ],
)
def test_a_stream_settles_with_a_key_that_may_and_with_no_other(
    settling: Settling,
    metadata: tuple[tuple[str, str], ...],
    status: str,
    reason: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Service(settling.service.bundle, Settings(), settling.clock)
    registry = service.metrics.registry
    keys = tuple(parse(f"edge admit {EDGE}\ngrafana read {DASH}", "keys"))
    reservation_id = service.admit(AdmitRequest(prompt_tokens=1_000)).reservation_id or ""
    told = [request(reservation_id), response(), chunk(ANSWER, end=True)]

    async def stream() -> str:
        ring = KeyRing(keys, None, settling.clock, registry)
        async with (
            running(service, "127.0.0.1", 0, ring) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            call = channel.stream_stream(
                "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
                request_serializer=ProcessingRequest.SerializeToString,
                response_deserializer=ProcessingResponse.FromString,
            )(iter([] if reason else told), metadata=metadata)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
            return str((await call.code()).name)

    assert asyncio.run(stream()) == status
    assert (service.controller.snapshot(0.0).held_tokens == 0) == (status == "OK")
    denied = registry.get_sample_value("tidegate_envoy_denied_total", {"reason": reason or "missing"}) or 0
    assert denied == (reason is not None)
    assert not any(key in str(record.__dict__) for record in caplog.records for key in (EDGE, DASH))
