"""Tests of the project itself: set-up, imports, sizes, package."""
