"""Readers of benchmarks: one form a file, each giving documents and a report of what it dropped."""
