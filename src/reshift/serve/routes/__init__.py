"""The REST API, one file per group of endpoints."""
