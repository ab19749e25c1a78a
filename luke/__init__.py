"""LUKE: a transformer encoder that reads words and entities as tokens, from a dump to a fine-tuned model."""

__version__ = "1.0.0"
