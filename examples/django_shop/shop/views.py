"""The shop's views."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse

from shop.models import Order
from shop.tasks import confirm


def place_order(request: HttpRequest) -> JsonResponse:
    """Store an order and enqueue its confirmation, or neither."""
    with transaction.atomic():
        order = Order.objects.create(email=request.POST["email"], amount=request.POST["amount"])
        result = confirm.enqueue(order.pk)
    return JsonResponse({"order": order.pk, "confirmation": result.id}, status=201)


def show_confirmation(request: HttpRequest, result_id: str) -> JsonResponse:  # noqa: ARG001 - Django's signature
    """Show the status of a confirmation."""
    result = confirm.get_result(result_id)
    return JsonResponse({"status": result.status, "attempts": result.attempts})
