"""The management API at `/api/v1`: what tenants own. Views read, authorize and answer; services change."""
