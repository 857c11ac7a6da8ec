"""Everything a person touches: pages and the command line."""
