"""Pure functions from data to components: no callback, no query."""
