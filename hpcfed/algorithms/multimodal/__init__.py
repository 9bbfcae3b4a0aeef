"""Methods for data of several modalities, or for records."""
