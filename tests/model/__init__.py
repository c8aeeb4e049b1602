"""Tests of gradweave.model."""
