"""The shop's URLs."""

from django.urls import path

from shop.views import place_order, show_confirmation

urlpatterns = [path("orders", place_order), path("confirmations/<str:result_id>", show_confirmation)]
