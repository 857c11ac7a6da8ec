"""FastAPI routers, one file a resource."""
