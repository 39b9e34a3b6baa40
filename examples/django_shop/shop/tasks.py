"""The shop's tasks."""

from datetime import timedelta

from django.core.mail import send_mail
from django.utils import timezone

from shop.compat import task
from shop.models import Order


@task(queue_name="mail")
def confirm(order_id: int) -> str:
    """Send the confirmation of an order, once."""
    order = Order.objects.get(pk=order_id)
    if order.confirmed_at is None:
        send_mail("Your order", f"We have received your order {order.pk}.", "shop@example.org", [order.email])
        order.confirmed_at = timezone.now()
        order.save()
    return order.email


@task
async def count_orders() -> int:
    """Count the orders."""
    return await Order.objects.acount()


@task
def delete_old_orders(days: int = 365) -> int:
    """Delete old orders; scheduled every night by OPTIONS["cron"] in the settings."""
    deleted, _ = Order.objects.filter(created_at__lt=timezone.now() - timedelta(days=days)).delete()
    return deleted
