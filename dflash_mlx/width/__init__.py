"""How many rows the next round gets, from what rounds cost and what they bring."""
