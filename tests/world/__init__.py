"""Tests of gradweave.world."""
