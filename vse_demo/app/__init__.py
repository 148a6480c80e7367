"""The demo without its command line: what it computes, its page, its map, and its guard."""
