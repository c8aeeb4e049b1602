"""Tests of gradweave.reduce."""
