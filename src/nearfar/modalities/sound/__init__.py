"""Sound recordings: readers, views, MFCC baseline."""
