"""Methods with personal models of one architecture."""
