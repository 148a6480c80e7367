"""What the page shows, as parts of it: results, attributions, the map, drawings."""
