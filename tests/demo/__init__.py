"""Tests of gradweave.demo."""
