"""Tests of gradweave.sync."""
