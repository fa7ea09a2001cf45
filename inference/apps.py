from django.apps import AppConfig


class InferenceConfig(AppConfig):
    name = "inference"

    def ready(self) -> None:
        from inference import triggers  # noqa: F401  (connects its signal receiver)
