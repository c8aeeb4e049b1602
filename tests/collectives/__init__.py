"""Tests of gradweave.collectives."""
