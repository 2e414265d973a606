"""Routes by which an operator changes what runs: POST /v1/bundle."""

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, Field

from serving.forecast.bundles import Bundles, RefusedError
from serving.http import problems
from serving.http.messages import Name


class BundleRequest(BaseModel):
    """Which bundle is to forecast."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"examples": [{"name": "2026-01-31"}]}
    )

    name: Name = Field(description="Folder of the bundle in the service's bundle folder.")


class BundleResponse(BaseModel):
    """The bundle is loaded and forecasts from the next tick on."""

    bundle: str = Field(description="Version of the bundle that serves now.")
    before: str = Field(description="Version of the bundle that served before.")
    changed: bool = Field(description="False when this very bundle served already.")


def router(bundles: Bundles) -> APIRouter:
    """Routes that change what ``bundles`` serves."""
    routes = APIRouter()

    @routes.post("/v1/bundle", responses=problems.documented(400, 401, 403, 404, 408, 409, 413, 422))
    async def load(request: BundleRequest) -> BundleResponse:
        """Forecast with another bundle of the bundle folder; refused with the reason when it can't serve.

        It is loaded and tried beside the requests. Budget, outcomes and what guards have seen go on.
        """
        try:
            done = await bundles.swap_to(request.name)
        except RefusedError as error:
            raise HTTPException(error.status, str(error)) from error
        return BundleResponse(bundle=done.bundle, before=done.before, changed=done.changed)

    return routes
