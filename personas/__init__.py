"""Tenants, their members and keys, steering vectors, and the personas made of them."""
