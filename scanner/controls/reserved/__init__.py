"""Reserved messages, which nobody is ever given: text that nobody marked meets them as often as chance says."""
