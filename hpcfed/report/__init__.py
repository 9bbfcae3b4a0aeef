"""What a result file tells: tables, pictures and references, from the file alone."""
