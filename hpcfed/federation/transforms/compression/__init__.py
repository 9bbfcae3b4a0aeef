"""Compression of uploads and downloads: each codec is one file."""
