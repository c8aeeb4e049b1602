"""Tests of Gradweave, one folder per package."""
