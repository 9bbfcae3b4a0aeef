"""Methods whose server has no data and makes its examples."""
