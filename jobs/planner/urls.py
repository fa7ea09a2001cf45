"""URL of the planner's page."""

from django.urls import path

from jobs.planner import views

urlpatterns = [path("", views.planner, name="planner")]
