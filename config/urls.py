"""URLs of the pages. `/v1/…` (the OpenAI API) and `/ws/…` never get here: see config/asgi.py."""

from django.contrib import admin
from django.contrib.auth import views as auth_views
from django.urls import include, path

from inference.views import health
from personas.log_in_limit import limit_failures

urlpatterns = [
    path("healthz", health, name="health"),
    path("login/", limit_failures(auth_views.LoginView.as_view(redirect_authenticated_user=True)), name="login"),
    path("logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("admin/login/", limit_failures(admin.site.login)),  # the admin's own form, which would be a way around
    path("admin/", admin.site.urls),
    path("api/v1/", include("personas.api.urls")),
    path("api/v1/", include("inference.api.urls")),
    path("api/", include("personas.api.docs_urls")),
    path("planner/", include("jobs.planner.urls")),
    path("", include("personas.urls")),
]
