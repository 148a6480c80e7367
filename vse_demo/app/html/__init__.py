"""What the page shows, as HTML: results and attributions, the map, drawings."""
