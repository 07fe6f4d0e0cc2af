"""Runs made of stages: each stage does one thing in a folder of its own, once."""
