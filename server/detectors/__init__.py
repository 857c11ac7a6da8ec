"""Detectors: pure, vectorised, causal functions of arrays; they know no metric and no run."""
