"""Speed of event store and features: ``rerank bench features``."""
