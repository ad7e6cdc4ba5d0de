"""From words to parts: settings, recipes, presets, and how they are checked and built."""
