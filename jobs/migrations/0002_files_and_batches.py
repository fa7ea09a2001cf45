import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="batch",
            name="output_expires_after_s",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="fruitful_attempt",
            field=models.PositiveIntegerField(default=0, help_text="The last one that got anything done"),
        ),
        migrations.AddField(
            model_name="job",
            name="rate",
            field=models.FloatField(blank=True, help_text="Done per second, of late", null=True),
        ),
        migrations.AddField(
            model_name="storedfile",
            name="expires_at",
            field=models.DateTimeField(default=django.utils.timezone.now),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="storedfile",
            name="key_prefix",
            field=models.CharField(blank=True, help_text="The API key that made it", max_length=8),
        ),
        migrations.AddIndex(
            model_name="storedfile",
            index=models.Index(fields=["expires_at"], name="file_by_expiry"),
        ),
    ]
