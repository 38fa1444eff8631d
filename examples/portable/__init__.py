"""One script, unchanged on every engine: ``make demo-portable``."""
