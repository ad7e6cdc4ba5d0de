"""Images: readers, views and how they are shown."""
