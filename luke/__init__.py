"""LUKE: a transformer encoder that reads words and entities as tokens, from a dump to a fine-tuned model."""

__version__ = "1.0.0"


def __getattr__(name: str) -> object:
    """`luke.LukeProcessor`, imported when it is asked for: the command line must answer at once."""
    if name == "LukeProcessor":
        from luke.processor import LukeProcessor

        return LukeProcessor
    raise AttributeError(f"module 'luke' has no attribute {name!r}")
