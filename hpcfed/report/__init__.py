"""Reports from result files alone: tables, figures, pages and references."""
