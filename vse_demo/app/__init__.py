"""The demo: what it computes (`service`, `map`), its HTML, its page, its guard and its command line (`launch`)."""
