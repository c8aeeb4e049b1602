"""Benchmarks: ratios within one run, interleaved, with medians and spreads; results in `results/*.json`."""
