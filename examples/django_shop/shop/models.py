"""The shop's models."""

from django.db import models


class Order(models.Model):
    """An order; `confirmed_at` is the time of its confirmation email."""

    email = models.EmailField()
    amount = models.DecimalField(max_digits=8, decimal_places=2)
    created_at = models.DateTimeField(auto_now_add=True)
    confirmed_at = models.DateTimeField(null=True)
