"""Tests of gradweave.cli."""
