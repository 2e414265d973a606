"""Two services with one store, over HTTP as a gateway calls them."""

import asyncio
import contextlib

import httpx

from models.bundle import Bundle
from serving.app import create_app
from serving.clock import SystemClock
from serving.controller.quota import Quota
from serving.controller.rules import Rules
from serving.controller.tenants import TenantLimits
from serving.settings import Settings
from serving.shared.settings import SharedSettings


def test_two_services_hold_one_quota_and_show_their_exchanges(bundle_folder, server, store_url):
    server.client.hset("{tidegate}:members", "@born", 0)
    settings = Settings(
        rules=Rules(default_tenant=TenantLimits(daily=Quota(1_000))),
        shared=SharedSettings(store_url, lease_s=30.0, deadline_ms=5_000.0),
    )
    apps = [create_app(Bundle.load(bundle_folder(None)), settings, SystemClock()) for _ in range(2)]

    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app.router.lifespan_context(app))
            one, other = [
                await stack.enter_async_context(
                    httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
                )
                for app in apps
            ]
            while any(app.state.service.sharing.lost for app in apps):
                await asyncio.sleep(0.01)
            asked = {"tenant": "acme", "prompt_tokens": 500, "max_tokens": 100}
            admitted = await one.post("/v1/admit", json=asked)
            refused = await other.post("/v1/admit", json=asked)
            assert (admitted.status_code, refused.status_code) == (200, 429)
            assert "tidegate_shared_store_lost 0.0" in (await one.get("/metrics")).text
            assert "tidegate_shared_replicas 2.0" in (await other.get("/metrics")).text
        assert set(server.client.hkeys("{tidegate}:members")) == {"@born"}  # both have parted

    asyncio.run(test())
