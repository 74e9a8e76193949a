"""Logs, replay through the production path, ranking metrics with intervals, and reports."""
