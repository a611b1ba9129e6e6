"""``/models``: what can be scored with."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from reshift.serve.models import card, summary
from reshift.serve.routes.shared import API, PROBLEMS, Running

router = APIRouter(prefix=f"{API}/models", tags=["models"], responses=PROBLEMS)


@router.get("")
def list_models(service: Running) -> dict[str, Any]:
    """Every bundle below ``--models`` with its thresholds."""
    return {"items": [summary(known) for known in service.models.all()]}


@router.get("/{name}")
def show_model(name: Annotated[str, Path(max_length=200)], service: Running) -> dict[str, Any]:
    """The model card, settings, thresholds and the scores of the normals that they come from."""
    return card(service.models.get(name))
