"""Engines, bringing them to the desired state, and the ways in: the OpenAI gateway and the live pages."""
